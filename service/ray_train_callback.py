"""The shell between Ray Train's controller and the recorder: the one class of ours that the controller calls.

It is pickled into the controller's process, so it carries a job id and limits only; there it opens the store with that
node's own settings, as the driver did (the controller is pinned to the driver's node).
"""

import logging
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import ray
from ray.train import UserCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.util.state import list_actors

from service.failures import RankPlace
from service.run_recorder import RunRecorder
from service.settings import load_settings
from service.store.engine import open_store
from workers.comm.report_log import ReportReader
from workers.ray_backend import ReplicasBackend
from workers.ray_loop import crash_file_name
from workers.training.folder import Folder

_log = logging.getLogger(__name__)
_DEATH_IS_KNOWN_AFTER_S = 1.5  # Ray needs a moment to hear of a process that was killed; its peers hear it at once


class JobCallback(UserCallback):  # type: ignore[misc]  # Ray has no types here
    """Hands reports and failures of the ranks to the job's ``RunRecorder``.

    ``num_apart`` is the number of ranks of a run whose ranks outlive each other, else 0.
    """

    def __init__(self, job_id: str, *, max_restarts: int, num_apart: int = 0) -> None:
        self._job_id = job_id
        self._max_restarts = max_restarts
        self.num_apart = num_apart

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        """All ranks have reported; ``metrics[rank]`` is what ``workers.ray_loop`` sent."""
        if not self.num_apart:  # else of a checkpoint alone
            self.recorder.reported(metrics)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Ranks failed. Raises ``RunFailedError`` to end the run at once; otherwise Ray restarts the group.

        Of ranks that outlive each other Ray restarts those that failed, and the group only if all did.
        """
        self.recorder.failed(worker_exceptions, others_go_on=len(worker_exceptions) < self.num_apart)

    @cached_property
    def recorder(self) -> RunRecorder:
        """Made where it is used: the callback is pickled on its way to the controller, the recorder is not."""
        _print_our_log()
        settings = load_settings()
        logs = Folder(settings.job_uri(self._job_id)) / "logs"
        return RunRecorder(
            self._job_id,
            open_store=lambda: open_store(settings.database_url),
            max_restarts=self._max_restarts,
            find_deaths=find_deaths,
            find_trace=lambda rank: read_trace(logs, rank),
        )


class ReplicaReports(WorkerGroupCallback):  # type: ignore[misc]  # Ray has no types here
    """Reads what replicas report that outlive each other, whenever Ray has looked after them, for the same recorder.

    ``backend`` is the one that gives the replicas their store; all callbacks travel to the controller together, so it
    is the same there, too.
    """

    def __init__(self, callback: JobCallback, *, backend: ReplicasBackend) -> None:
        self._callback, self._backend = callback, backend
        self._reader: ReportReader | None = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        """All ranks begin, with an empty store."""
        self._reader = None

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """Take what has come since the last time."""
        assert self._backend.store is not None, "ranks are looked after once they have started"
        self._reader = self._reader or ReportReader(self._backend.store, size=self._callback.num_apart)
        reports = self._reader.take()
        if reports:
            self._callback.recorder.reported(reports)


def _print_our_log() -> None:
    """Let what the recorder says reach the driver's output: Ray forwards what this process prints."""
    logger = logging.getLogger("service")
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.setLevel(logging.INFO)


def find_deaths(places: Mapping[int, RankPlace]) -> dict[int, str]:
    """Ranks of this run whose processes Ray has found dead, with what Ray says of their end."""
    pids = {(place.node, place.pid): rank for rank, place in places.items()}
    deadline = time.monotonic() + _DEATH_IS_KNOWN_AFTER_S
    while True:
        found = _dead_ranks(pids)
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def read_trace(logs: Folder, rank: int) -> str:
    """The signal that ended a rank, as its own crash file tells it; empty when it left none (SIGKILL leaves none)."""
    try:
        lines = logs.read(crash_file_name(rank)).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return lines[0] if lines else ""


def _dead_ranks(pids: Mapping[tuple[str, int], int]) -> dict[int, str]:
    job = ray.get_runtime_context().get_job_id()
    filters = [("job_id", "=", job), ("class_name", "=", "RayTrainWorker"), ("state", "=", "DEAD")]
    try:
        actors = list_actors(filters=filters, detail=True, timeout=2)
    except Exception:  # a diagnosis that fails must not hide the failure that it is about
        _log.exception("Ray could not be asked which rank died")
        return {}
    found = {}
    for actor in actors:
        context = (actor.death_cause or {}).get("actor_died_error_context") or {}
        rank = pids.get((str(context.get("node_ip_address")), int(actor.pid or 0)))
        if rank is not None:
            found[rank] = context.get("error_message") or "its process ended"
    return found
