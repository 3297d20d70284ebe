"""A job that leaves the number of its ranks open: every number is measured, and as many run as the plan says."""

import pytest

from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import sampled

pytestmark = pytest.mark.ray


def test_as_many_ranks_run_as_the_plan_chose(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(resources={"min_workers": 1, "num_workers": 2}))
    job = cluster.wait_for(job_id, JobState.FINISHED)
    plan = cluster.store.get_plan(job_id)
    assert plan is not None
    assert "s per step" in plan.reasons[0]
    assert any(entry.choice.startswith(("1 rank:", "2 ranks:")) for entry in plan.runners_up)
    assert job.world_size == plan.world_size
    ranks = {point.rank for point in cluster.store.metrics(job_id, names=("loss",)).points}
    assert ranks == set(range(plan.world_size))
    cluster.wait_until_clean(timeout_s=30)
