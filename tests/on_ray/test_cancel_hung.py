"""A driver that hangs obeys no cancel: the dispatcher has Ray stop it, within the ten seconds of any other cancel."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from service.dispatcher import Dispatcher
from service.processes import members_of
from service.spec import JobState
from tests.kit.ray_cluster import LiveCluster
from tests.on_ray.jobs import FOREVER, sampled

pytestmark = pytest.mark.ray

LIMIT_S = 10.0


@contextmanager
def dispatching(cluster: LiveCluster) -> Iterator[None]:
    """A dispatcher at work, as in the API process."""
    dispatcher, done = Dispatcher(cluster.store, cluster.client, holder="test"), threading.Event()

    def work() -> None:
        while not done.wait(0.5):
            dispatcher.step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        dispatcher.release()


def driver_of(cluster: LiveCluster, job_id: str) -> psutil.Process:
    members = members_of(cluster.info.head, mark=cluster.info.mark)
    (driver,) = (each for each in members if each.cmdline()[-4:-1] == ["-m", "service.driver_main", job_id])
    return driver


def test_a_hung_driver_is_killed_and_its_job_cancelled(cluster: LiveCluster) -> None:
    job_id = cluster.submit(sampled(epochs=FOREVER))
    cluster.wait_for(job_id, JobState.RUNNING)
    os.kill(driver_of(cluster, job_id).pid, signal.SIGSTOP)
    with dispatching(cluster):
        asked_at = time.monotonic()
        cluster.store.request_cancel(job_id)
        job = cluster.wait_for(job_id, JobState.CANCELLED, timeout_s=LIMIT_S)
        assert job.reason is not None
        assert job.reason.text == "cancelled by its user; its driver was stopped"
        cluster.wait_until_clean(timeout_s=LIMIT_S - (time.monotonic() - asked_at))
