"""A head that is killed in the middle of a job, under a dispatcher at work: the cluster is replaced, the job ends."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from api.embedded_cluster import EmbeddedCluster
from service.cluster_record import ClusterInfo, mark_of, read_record
from service.dispatcher import Dispatcher
from service.embedded import stop_cluster
from service.job_files import list_artifacts
from service.processes import members_of
from service.settings import Settings
from service.spec import JobSpec, JobState
from service.store.job_store import JobStore
from tests.kit.builders import fresh_store, sqlite_url
from tests.kit.ray_cluster import importable_tests, shared_memory
from tests.on_ray.jobs import FOREVER, sampled
from workers.training.folder import Folder

pytestmark = pytest.mark.ray

LIMIT_S = 240.0  # as elsewhere: the machine may be busy
TRAINING = {"batch_size": 8, "checkpoint_every_epochs": 5, "epochs": FOREVER}


def step_until(dispatcher: Dispatcher, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        dispatcher.step()
        time.sleep(0.3)


def record_of(settings: Settings) -> ClusterInfo:
    info = read_record(settings)
    assert info is not None
    return info


def has_trained(store: JobStore, job_id: str) -> bool:
    job = store.get_job(job_id)
    assert not job.ended, job.reason
    return bool(job.progress.get("epoch", 0) > 6)  # the first checkpoint is there


def test_the_job_of_a_killed_head_fails_with_the_reason_and_leaves_nothing_behind(tmp_path: Path) -> None:
    settings, segments = Settings(home=tmp_path, database_url=sqlite_url(tmp_path)), shared_memory()
    store = fresh_store(tmp_path)
    try:
        with importable_tests():
            cluster = EmbeddedCluster(settings)
        dispatcher = Dispatcher(store, cluster, holder="test")
        job_id = store.create_job(JobSpec.model_validate(sampled(training=TRAINING)))[0].id
        step_until(dispatcher, lambda: has_trained(store, job_id))
        first = record_of(settings)
        of_the_first = members_of(first.head, mark=first.mark)
        os.kill(first.head.pid, signal.SIGKILL)

        step_until(dispatcher, lambda: store.get_job(job_id).ended)
        job = store.get_job(job_id)
        assert job.reason is not None
        assert (job.state, job.reason.code) == (JobState.FAILED, "driver_lost")
        assert "while the job was RUNNING" in job.reason.text
        assert not [process.pid for process in of_the_first if process.is_running() and not is_zombie(process)]
        assert not first.temp_dir.exists()
        assert any(
            artifact.path.startswith("checkpoints/") for artifact in list_artifacts(Folder(settings.job_uri(job_id)))
        )

        second = store.create_job(JobSpec.model_validate(sampled(epochs=10)))[0].id
        step_until(dispatcher, lambda: store.get_job(second).ended)
        assert store.get_job(second).state is JobState.FINISHED, "the cluster that replaced it takes jobs"
        assert record_of(settings).head != first.head
    finally:
        stop_cluster(settings)
        store.close()
    assert members_of(None, mark=mark_of(settings)) == []
    deadline = time.monotonic() + 30  # segments of other programs come and go; what is left behind stays
    while found := shared_memory() - segments:
        assert time.monotonic() < deadline, f"left behind: {sorted(found)}"
        time.sleep(0.5)


def is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
