"""A real embedded cluster for tests: jobs go in as the dispatcher sends them, and what they leave can be seen."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.cluster_record import ClusterInfo
from service.embedded import start_cluster, stop_cluster
from service.processes import members_of
from service.ray_cluster import RayCluster
from service.settings import Settings
from service.spec import JobSpec, JobState
from service.store.engine import open_store
from service.store.job_store import JobStore
from service.store.records import JobRecord
from workers.versions import installed_version

# Ray's own, one of each per cluster, started by the first run that needs them; they hold no resources.
RAYS_OWN_ACTORS = frozenset({"TrainStateActor", "_AutoscalingCoordinatorActor"})
# What torch, Python's multiprocessing and Ray name their segments; other programs of the machine have theirs.
_OUR_SEGMENTS = ("torch_", "psm_", "sem.mp-", "plasma", "ray")
# A dashboard answers within milliseconds; on a crowded machine it may wait for its turn.
_ASK_S = 60.0
ROOT = Path(__file__).resolve().parents[2]


def shared_memory() -> frozenset[str]:
    """Segments of our kinds that exist now."""
    return frozenset(name for name in os.listdir("/dev/shm") if name.startswith(_OUR_SEGMENTS))


@dataclass
class LiveCluster:
    """A running cluster with a store beside it; ``at_rest`` are the processes it had before the first job."""

    settings: Settings
    info: ClusterInfo
    client: RayCluster
    store: JobStore
    at_rest: frozenset[int] = frozenset()
    shared_memory: frozenset[str] = field(default_factory=shared_memory)

    # ---- jobs

    def submit(self, document: Mapping[str, Any], *, module: str = "service.driver_main") -> str:
        """Store a job and start its driver, as the dispatcher does. Another ``module`` plays a changed driver."""
        job = self.store.create_job(JobSpec.model_validate(document))[0]
        self.store.set_submission(job.id, job.id)
        entrypoint = f"python -m {module} {job.id} {installed_version()}"
        self.client.submit(job.id, submission_id=job.id, entrypoint=entrypoint, metadata={})
        return job.id

    def submit_bare(self, submission_id: str, *, entrypoint: str) -> None:
        """Start a driver that is not ours, with none of our switches."""
        headers = {"Authorization": f"Bearer {self.info.token()}"}
        body = {"entrypoint": entrypoint, "submission_id": submission_id}
        url = f"{self.info.dashboard_url}/api/jobs/"
        httpx.post(url, json=body, headers=headers, timeout=_ASK_S, trust_env=False).raise_for_status()

    def wait(self, job_id: str, until: Callable[[JobRecord], bool], *, timeout_s: float = 240.0) -> JobRecord:
        """The job as soon as ``until`` holds; fails at once when it ended without that, and shows its log."""
        deadline = time.monotonic() + timeout_s
        while True:
            job = self.store.get_job(job_id)
            if until(job):
                return job
            assert not job.ended, f"{job.state}: {job.reason}\n{self.log(job_id)}"
            assert time.monotonic() < deadline, f"still {job.state} after {timeout_s} s\n{self.log(job_id)}"
            time.sleep(0.05)

    def wait_for(self, job_id: str, *states: JobState, timeout_s: float = 240.0) -> JobRecord:
        """The job as soon as it is in one of ``states``."""
        return self.wait(job_id, lambda job: job.state in states, timeout_s=timeout_s)

    def log(self, job_id: str) -> str:
        """What the driver printed."""
        path = Path(self.settings.job_uri(job_id)) / "logs" / "driver.log"
        return path.read_text(errors="replace") if path.exists() else "(no log)"

    # ---- what Ray says

    def ask(self, path: str) -> Any:
        """Ray's own answer."""
        return self.ask_as(f"Bearer {self.info.token()}", path).json()

    def ask_as(self, authorization: str, path: str) -> httpx.Response:
        """The answer to somebody who shows this authorization."""
        headers = {"Authorization": authorization} if authorization else {}
        return httpx.get(self.info.dashboard_url + path, headers=headers, timeout=_ASK_S, trust_env=False)

    def actors(self) -> list[dict[str, Any]]:
        """All actors that are not dead, but Ray's own."""
        found = self.ask("/api/v0/actors?detail=1&limit=1000")["data"]["result"]["result"]
        return [each for each in found if each["state"] != "DEAD" and each["class_name"] not in RAYS_OWN_ACTORS]

    def rank_pids(self) -> list[int]:
        """Processes of the ranks that train now."""
        return [each["pid"] for each in self.actors() if each["class_name"] == "RayTrainWorker" and each["pid"]]

    def leftovers(self) -> dict[str, Any]:
        """Whatever a job that has ended should not have left; empty when all is as before."""
        groups = self.ask("/api/v0/placement_groups?limit=1000")["data"]["result"]["result"]
        shape = self.client.shape()
        found = {
            "actors": [(each["class_name"], each["state"]) for each in self.actors()],
            "placement groups": [each["placement_group_id"] for each in groups if each["state"] != "REMOVED"],
            "processes": self._processes(),
            "CPUs in use": shape.num_cpus - shape.free_cpus,
            "shared memory": sorted(shared_memory() - self.shared_memory),
        }
        return {name: value for name, value in found.items() if value}

    def wait_until_clean(self, *, timeout_s: float) -> None:
        """Fail unless nothing is left after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while found := self.leftovers():
            assert time.monotonic() < deadline, f"left behind: {found}"
            time.sleep(0.1)

    def _processes(self) -> list[str]:
        """Commands of processes that were not there at rest; Ray keeps a few idle workers and its own actors."""
        names = []
        for process in members_of(self.info.head, mark=self.info.mark):
            try:
                command = " ".join(process.cmdline()).strip()
            except psutil.NoSuchProcess:
                continue  # it has just ended
            ours = any(f"ray::{name}" in command for name in ("IDLE", *RAYS_OWN_ACTORS))
            if process.pid not in self.at_rest and not ours:
                names.append(command[:80])
        return names


@contextmanager
def live_cluster(home: Path, **settings: Any) -> Iterator[LiveCluster]:
    """An embedded cluster with its home in ``home``, ended at the end whatever happens."""
    chosen = Settings(home=home, **settings)
    try:
        with importable_tests():
            info = start_cluster(chosen)
        client = RayCluster(info.dashboard_url, token=info.token())
        cluster = LiveCluster(chosen, info, client, open_store(chosen.database_url, durable=False))
        cluster.at_rest = frozenset(process.pid for process in members_of(info.head, mark=info.mark))
        yield cluster
        cluster.store.close()
    finally:
        stop_cluster(chosen)


@contextmanager
def importable_tests() -> Iterator[None]:
    """Let drivers of tests be modules of tests; the cluster inherits this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield
