"""Actors that sample for the ranks of a job: reserved before them, lost and found again, gone after them."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from planner.plan import QueueBudget
from planner.sampling import SamplingRule
from service.spec import JobState
from tests.kit.rank_runs import sampled_run
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import FOREVER, sampled
from tests.on_ray.test_cancel import cancel
from tests.on_ray.test_cancel_hung import driver_of
from workers.data.paths import DataPaths
from workers.mqgnn.train import train
from workers.training.run import Report

pytestmark = pytest.mark.ray

EPOCHS = 400


def remote_job(*, epochs: int, **changes: Any) -> dict[str, Any]:
    training = {"epochs": epochs, "batch_size": 8, "eval_every_epochs": 100, "checkpoint_every_epochs": 20}
    sampling = {"placement": "remote", "num_actors": 2, "cpus_per_actor": 0.5}
    return sampled(training={**training, "sampling": sampling}, resources={"num_workers": 1}, **changes)


def sampler_pids(cluster: LiveCluster) -> list[int]:
    return [each["pid"] for each in cluster.actors() if each["class_name"] == "SamplingActor" and each["pid"]]


def losses_of_local_run(cluster: LiveCluster, job_id: str, folder: Path) -> dict[int, float]:
    """What the job's ranks would have reported, had they sampled themselves."""
    spec, plan = cluster.store.get_job(job_id).spec.train_spec(), cluster.store.get_plan(job_id)
    assert plan is not None
    training = spec.training.model_copy(update={"sampling": SamplingRule()})
    local = spec.model_copy(update={"training": training})
    queues = tuple(QueueBudget(name=name, max_items=2, max_bytes=2**22) for name in ("sample", "prepare"))
    found: dict[int, float] = {}

    def report(said: Report) -> None:
        found[said.step] = said.values["loss"]

    paths = DataPaths(root=None, cache=cluster.settings.cache)
    every = {"report_every_steps": plan.report_every_steps, "num_threads": plan.num_threads}
    train(sampled_run(local, job_dir=folder, data=paths, report=report, queues=queues, **every))
    return found


def test_a_job_outlives_an_actor_trains_as_one_that_samples_itself_and_leaves_nothing(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    job_id = cluster.submit(remote_job(epochs=EPOCHS))
    cluster.wait(job_id, lambda job: job.progress.get("epoch", 0) > 5)
    before = sampler_pids(cluster)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    job = cluster.wait_for(job_id, JobState.FINISHED)
    assert job.restarts == 0
    assert re.search(r"sampling actor \d \(pid \d+ on [\d.]+\) is lost, others are asked", cluster.log(job_id))
    points = cluster.store.metrics(job_id, names=("loss",), ranks=(0,)).points
    expected = losses_of_local_run(cluster, job_id, tmp_path)
    assert {point.step: point.value for point in points} == expected
    cluster.wait_until_clean(timeout_s=30)


def test_a_hanging_actor_is_named_and_restarted_and_a_cancel_takes_all_away(cluster: LiveCluster) -> None:
    job_id = cluster.submit(remote_job(epochs=FOREVER, limits={"max_restarts": 1, "max_rank_silence_s": 4}))
    cluster.wait(job_id, lambda job: job.progress.get("epoch", 0) > 25)
    stopped = sampler_pids(cluster)[0]
    os.kill(stopped, signal.SIGSTOP)
    job = cluster.wait_for(job_id, JobState.RESTARTING, timeout_s=60)
    assert job.reason is not None
    assert "stage 'remote' has worked on one item for" in job.reason.text
    assert re.search(rf"waiting for sampling actor \d \(pid {stopped} on [\d.]+\)", job.reason.text)
    assert cluster.wait_for(job_id, JobState.RUNNING, timeout_s=120).restarts == 1
    assert not psutil.pid_exists(stopped), "the stopped process was left behind"
    cancel(cluster, job_id)


def test_with_its_driver_a_jobs_actors_and_their_places_go(cluster: LiveCluster) -> None:
    job_id = cluster.submit(remote_job(epochs=FOREVER))
    cluster.wait_for(job_id, JobState.RUNNING)
    assert len(sampler_pids(cluster)) == 2
    os.kill(driver_of(cluster, job_id).pid, signal.SIGKILL)
    cluster.wait_until_clean(timeout_s=60)


def test_an_actor_that_loops_ends_the_job_with_its_stack(cluster: LiveCluster) -> None:
    limits = {"max_restarts": 0, "max_rank_silence_s": 4}
    job_id = cluster.submit(remote_job(epochs=FOREVER, limits=limits), module="tests.on_ray.looping_sampler")
    job = cluster.wait_for(job_id, JobState.FAILED)
    assert job.reason is not None
    assert re.search(r"stage 'remote' .*, waiting for sampling actor \d \(pid \d+ on [\d.]+\),", job.reason.text)
    assert "in loop_for_ever" in cluster.log(job_id)
    cluster.wait_until_clean(timeout_s=30)
