"""A replica that is killed under ``sync: racom``: the others go on, Ray starts it anew alone, and the job finishes."""

import os
import signal

import pytest

from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import sampled

pytestmark = pytest.mark.ray

EPOCHS = 3000


def test_a_killed_replica_comes_back_while_the_others_train_on(cluster: LiveCluster) -> None:
    training = {"batch_size": 8, "epochs": EPOCHS, "eval_every_epochs": 500, "checkpoint_every_epochs": 500}
    job_id = cluster.submit(
        sampled(
            training={**training, "sync": "racom"},
            resources={"num_workers": 2},
            limits={"max_restarts": 1, "max_rank_silence_s": 5},
        )
    )
    cluster.wait(job_id, lambda job: job.progress.get("epoch", 0) > 5)
    killed, kept = sorted(cluster.rank_pids(), reverse=True)
    os.kill(killed, signal.SIGKILL)
    cluster.wait(job_id, lambda _: lost(cluster, job_id) is not None, timeout_s=60)
    assert f"(pid {killed} on " in lost(cluster, job_id)["text"]
    assert "the others go on, and it comes back" in lost(cluster, job_id)["text"]
    assert cluster.store.get_job(job_id).state is JobState.RUNNING
    assert kept in cluster.rank_pids()

    job = cluster.wait_for(job_id, JobState.FINISHED)
    assert job.restarts == 0
    points = cluster.store.metrics(job_id, names=("members",)).points
    of_rank = {rank: [point for point in points if point.rank == rank] for rank in range(2)}
    survivor = max(of_rank.values(), key=len)
    assert {point.value for point in survivor} == {1.0, 2.0}, "the other waited, or was not seen alone"
    steps = [point.step for point in survivor]
    assert steps == sorted(set(steps)), "the survivor was started anew"
    assert max(point.step for point in points) == steps[-1]
    cluster.wait_until_clean(timeout_s=30)


def lost(cluster: LiveCluster, job_id: str) -> dict[str, str] | None:
    """What is told of a replica that was lost, once it is."""
    events = cluster.store.events_after(job_id)
    return next((event.data for event in events if event.type == "replica_lost"), None)
