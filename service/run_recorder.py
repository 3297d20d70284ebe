"""What the ranks report, written where everyone can see it: metrics, progress, the moves to RUNNING and RESTARTING.

It lives in the process of Ray Train's controller, next to the driver, and is plain: ``ray_train_callback.py`` is the
shell. A database that does not answer for a moment must not end a training run: what could not be written is kept and
tried again with the next report; of the last report there is no next, so the recorder insists on it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from service.failures import RankPlace, RunFailedError, explain_ranks, has_only_echoes
from service.spec import JobState
from service.states import IllegalMoveError
from service.store.insistence import AWAY, insist
from service.store.job_store import JobStore
from service.store.records import MetricPoint, Reason

_log = logging.getLogger(__name__)
_SHOWN = ("loss", "items_per_s")
_SCORES = ("val_", "test_")  # and a metric's name: workers.training.metrics
_MOST_KEPT = 100_000  # points; a database that is away for longer loses the oldest


class RunRecorder:
    """Records one run. ``open_store`` is called when something is to be written, until it succeeds.

    ``find_deaths`` and ``find_trace`` look at the cluster and the job's folder after a failure.
    """

    def __init__(
        self,
        job_id: str,
        *,
        open_store: Callable[[], JobStore],
        max_restarts: int,
        find_deaths: Callable[[Mapping[int, RankPlace]], Mapping[int, str]] = lambda places: {},
        find_trace: Callable[[int], str] = lambda rank: "",
    ) -> None:
        self._job_id = job_id
        self._open_store = open_store
        self._max_restarts = max_restarts
        self._find_deaths = find_deaths
        self._find_trace = find_trace
        self._restarts = 0
        self._places: dict[int, RankPlace] = {}
        self._kept: list[MetricPoint] = []
        self._kept_restarts: list[Reason] = []
        self._kept_losses: list[Reason] = []
        self._progress: dict[str, Any] = {}

    def reported(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Reports of one step by all ranks, or of any steps by some that report each for itself.

        In the order of ranks; see ``workers.ray_loop`` for the fields.
        """
        self._places |= {report["rank"]: RankPlace(pid=report["pid"], node=report["node"]) for report in reports}
        at = datetime.now(UTC)
        self._kept.extend(point for report in reports for point in _points(report, at))
        del self._kept[:-_MOST_KEPT]
        self._progress = _progress(self._progress, reports)
        _log.info("%s", _in_words(self._progress))
        is_last = any("done" in report["values"] for report in reports)
        self._attempt((lambda: insist(self._write)) if is_last else self._write)

    def failed(self, errors: Mapping[int, BaseException], *, others_go_on: bool = False) -> None:
        """Ranks failed: record the restart that Ray is about to make, or end the run.

        Where ``others_go_on`` the job is as it was, and only those ranks are started anew; it counts all the same.

        Raises ``RunFailedError`` when no restart would help or none is left; raised out of Ray Train's callback, it
        ends the run with just that error.
        """
        self._attempt(self._write_restarts)
        deaths = self._find_deaths(self._places) if has_only_echoes(errors) else {}
        places = {
            rank: RankPlace(pid=place.pid, node=place.node, trace=self._find_trace(rank))
            for rank, place in self._places.items()
        }
        failures = explain_ranks(errors, places=places, deaths=deaths)
        if failures.is_final:
            raise RunFailedError(failures.reason.text, code=failures.reason.code)
        if self._restarts >= self._max_restarts:
            text = f"{failures.reason.text} (restarted {self._restarts} of at most {self._max_restarts} times)"
            raise RunFailedError(text, code=failures.reason.code)
        self._restarts += 1
        _log.warning("restart %d of at most %d: %s", self._restarts, self._max_restarts, failures.reason.text)
        (self._kept_losses if others_go_on else self._kept_restarts).append(failures.reason)
        self._attempt(self._write_restarts)

    @cached_property
    def _store(self) -> JobStore:
        return self._open_store()

    def _write(self) -> None:
        self._write_restarts()
        points, self._kept = self._kept, []
        try:
            self._store.add_metrics(self._job_id, points)
        except BaseException:
            self._kept = points + self._kept
            raise
        self._move_to_running()  # first: who follows the job hears that it runs before he hears how far it is
        self._store.set_progress(self._job_id, self._progress)

    def _move_to_running(self) -> None:
        state = self._store.get_job(self._job_id).state
        if state in (JobState.SCHEDULING, JobState.RESTARTING):
            self._store.move(self._job_id, JobState.RUNNING, only_from=state)

    def _write_restarts(self) -> None:
        while self._kept_losses:
            reason = self._kept_losses[0]
            text = f"{reason.text}; the others go on, and it comes back"
            self._store.add_event(self._job_id, "replica_lost", {"text": text, "code": reason.code})
            self._kept_losses.pop(0)
        while self._kept_restarts:
            reason = self._kept_restarts.pop(0)
            try:
                self._store.restart(self._job_id, reason)
            except AWAY:
                self._kept_restarts.insert(0, reason)
                raise

    def _attempt(self, write: Callable[[], None]) -> None:
        try:
            write()
        except IllegalMoveError as error:
            _log.info("job %s was moved by another hand meanwhile: %s", self._job_id, error)
        except AWAY:
            _log.exception(
                "the database did not take what job %s reports; it is kept and comes before the next", self._job_id
            )


def _points(report: Mapping[str, Any], at: datetime) -> list[MetricPoint]:
    return [
        MetricPoint(rank=report["rank"], name=name, step=report["step"], epoch=report["epoch"], value=value, at=at)
        for name, value in report["values"].items()
    ]


def _progress(before: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the run is, as the first rank that is furthest says (its throughput is that of all).

    Scores stay until the next evaluation.
    """
    first = max(reports, key=lambda report: report["step"])
    values = {name: value for name, value in first["values"].items() if _is_shown(name)}
    return {**before, **{name: first[name] for name in ("step", "total_steps", "epoch")}, **values}


def _in_words(progress: Mapping[str, Any]) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in progress.items() if _is_shown(name))
    return f"epoch {progress['epoch']}, step {progress['step']} of {progress['total_steps']}: {values}"


def _is_shown(name: str) -> bool:
    return name in _SHOWN or name.startswith(_SCORES)
