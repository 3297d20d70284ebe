"""Ranks that are killed: the run goes on from its last checkpoint, until it has no restart left."""

import os
import signal

import psutil
import pytest

from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import FOREVER, sampled
from tests.on_ray.test_cancel import cancel

pytestmark = pytest.mark.ray

CHECKPOINT_EVERY = 5
TRAINING = {"batch_size": 8, "checkpoint_every_epochs": CHECKPOINT_EVERY, "epochs": FOREVER}


def kill_a_rank(cluster: LiveCluster) -> int:
    pid = cluster.rank_pids()[-1]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_rank_restarts_the_run_from_its_checkpoint_and_a_cancel_still_works(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(training=TRAINING, limits={"max_restarts": 2}))
    cluster.wait(job_id, lambda job: job.progress.get("epoch", 0) > CHECKPOINT_EVERY + 1)
    pid = kill_a_rank(cluster)
    job = cluster.wait_for(job_id, JobState.RESTARTING, timeout_s=20)
    assert job.reason is not None
    assert job.reason.code == "worker_died"
    assert f"(pid {pid} on " in job.reason.text

    assert cluster.wait_for(job_id, JobState.RUNNING, timeout_s=60).restarts == 1
    points = cluster.store.metrics(job_id, names=("loss",), ranks=(0,)).points
    repeated = [point.epoch for point in points if point.at > job.updated_at]
    assert repeated[0] > CHECKPOINT_EVERY, "it began again from the start"
    assert repeated[0] % CHECKPOINT_EVERY == 1, "it did not begin right after a checkpoint"
    assert points[0].epoch == 1

    kill_a_rank(cluster)
    cluster.wait_for(job_id, JobState.RESTARTING, timeout_s=20)
    cancel(cluster, job_id)


def test_a_rank_that_is_stopped_is_noticed_named_and_the_run_restarted(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(training=TRAINING, limits={"max_restarts": 1, "max_rank_silence_s": 8}))
    cluster.wait(job_id, lambda job: job.progress.get("epoch", 0) > CHECKPOINT_EVERY + 1)
    pid = cluster.rank_pids()[-1]
    os.kill(pid, signal.SIGSTOP)
    job = cluster.wait_for(job_id, JobState.RESTARTING, timeout_s=30)
    assert job.reason is not None
    assert job.reason.code == "worker_unresponsive"
    assert f"(pid {pid} on " in job.reason.text
    assert "has given no sign of life for more than 8 s" in job.reason.text
    assert cluster.wait_for(job_id, JobState.RUNNING, timeout_s=60).restarts == 1
    assert not psutil.pid_exists(pid), "the stopped process was left behind"
    cancel(cluster, job_id)


def test_a_run_without_restarts_left_fails_and_names_the_rank_and_its_node(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(training=TRAINING, limits={"max_restarts": 0}))
    cluster.wait_for(job_id, JobState.RUNNING)
    pid = kill_a_rank(cluster)
    job = cluster.wait_for(job_id, JobState.FAILED, timeout_s=20)
    assert job.reason is not None
    assert job.reason.code == "worker_died"
    assert f"(pid {pid} on {cluster.client.shape().nodes[0].address}) died" in job.reason.text
    assert job.restarts == 0
    cluster.wait_until_clean(timeout_s=30)
