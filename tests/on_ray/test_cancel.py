"""A cancel ends a job from every state within ten seconds, and nothing of it is left on the cluster."""

import time

import pytest

from service.cluster import RunState
from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import FOREVER, sampled

pytestmark = pytest.mark.ray

LIMIT_S = 10.0


def cancel(cluster: LiveCluster, job_id: str, *, leaves_by_itself: bool = True) -> None:
    """Cancel, and hold the limit for the state, the driver and all that it had.

    A driver that ``leaves_by_itself`` takes its run apart in order; else its watch may have ended the process.
    """
    asked_at = time.monotonic()
    before = cluster.store.request_cancel(job_id).state
    job = cluster.wait_for(job_id, JobState.CANCELLED, timeout_s=LIMIT_S)
    assert job.reason is not None
    assert (job.reason.code, job.reason.text) == ("cancelled", f"cancelled by its user while {before}")
    cluster.wait_until_clean(timeout_s=LIMIT_S - (time.monotonic() - asked_at))
    assert cluster.client.status(job_id).state is RunState.SUCCEEDED
    if leaves_by_itself:
        assert "ending it now" not in cluster.log(job_id)


def test_while_profiling(cluster: LiveCluster) -> None:
    model = {"name": "graphsage", "hidden_size": 24, "fanouts": [4, 4]}  # of no other test: its profile is not known
    job_id = cluster.submit(sampled(epochs=FOREVER, model=model))
    cluster.wait_for(job_id, JobState.PROFILING)
    cancel(cluster, job_id)


def test_while_planning(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(epochs=FOREVER), module="tests.on_ray.slow_planner")
    cluster.wait_for(job_id, JobState.PLANNING)
    cancel(cluster, job_id)


def test_while_scheduling_and_an_equal_job_starts_afterwards(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(epochs=FOREVER))
    cluster.wait_for(job_id, JobState.SCHEDULING)
    cancel(cluster, job_id)
    second = cluster.submit(sampled(epochs=FOREVER))
    cluster.wait_for(second, JobState.RUNNING)
    cancel(cluster, second)
