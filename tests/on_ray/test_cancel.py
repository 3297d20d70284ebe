"""A cancel ends a job from every state within ten seconds, and nothing of it is left on the cluster."""

import time

import pytest

from service.cluster import RunState
from service.spec import JobState
from service.store.records import JobRecord
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import FOREVER, sampled

pytestmark = pytest.mark.ray

LIMIT_S = 10.0


def cancel(cluster: LiveCluster, job_id: str) -> JobRecord:
    """Cancel, and hold the limit for the state, the driver and all that it had; what the job has become."""
    asked_at = time.monotonic()
    before = cluster.store.request_cancel(job_id).state
    job = cluster.wait_for(job_id, JobState.CANCELLED, timeout_s=LIMIT_S)
    assert job.reason is not None
    assert (job.reason.code, job.reason.text) == ("cancelled", f"cancelled by its user while {before}")
    cluster.wait_until_clean(timeout_s=LIMIT_S - (time.monotonic() - asked_at))
    assert cluster.client.status(job_id).state is RunState.SUCCEEDED
    assert "ending it now" not in cluster.log(job_id)  # it left by itself
    return cluster.store.get_job(job_id)


def test_while_profiling(cluster: LiveCluster) -> None:
    model = {"name": "graphsage", "hidden_size": 24, "fanouts": [4, 4]}  # of no other test: its profile is not known
    job_id = cluster.submit(sampled(epochs=FOREVER, model=model))
    cluster.wait_for(job_id, JobState.PROFILING)
    assert cancel(cluster, job_id).world_size is None, "it never had a plan"


def test_while_planning(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(epochs=FOREVER), module="tests.on_ray.slow_planner")
    cluster.wait_for(job_id, JobState.PLANNING)
    assert cancel(cluster, job_id).world_size is None, "its plan came too late"


def test_while_scheduling_and_an_equal_job_starts_afterwards(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(epochs=FOREVER))
    cluster.wait_for(job_id, JobState.SCHEDULING)
    assert not cancel(cluster, job_id).progress, "no rank had begun"
    second = cluster.submit(sampled(epochs=FOREVER))
    cluster.wait_for(second, JobState.RUNNING)
    assert cancel(cluster, second).restarts == 0
