"""The dispatcher: submits waiting jobs to the cluster and notices what became of them. It runs in the API process.

One ``step`` looks at the cluster, reads the jobs that may need something, asks ``policies`` and ``admission`` what to
do, and does it. It keeps nothing that matters: all it needs stands in the store, so a dispatcher that is killed at any
line is continued by the next. A job is claimed in the store before it is submitted under the claimed name, and a
submission of a known name is a no-op, hence nothing runs twice. A lease keeps a second dispatcher waiting.

Of a long queue only the head is read: what waits behind it cannot start now, and keeps its first reason and its place.

Only ``shape`` tells whether the cluster can be asked; when it cannot, no run is asked about. A complaint about one run,
or no answer about it in time, concerns that run alone.
"""

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from planner.cluster import ClusterSpec
from service.admission import admit, why_never
from service.cluster import (
    ClusterClient,
    ClusterRefusedError,
    ClusterTroubledError,
    ClusterUnreachableError,
    RunState,
    RunStatus,
)
from service.policies import DEFAULT_PATIENCE, Patience, Verdict, judge, needs_status, retry_delay_s, why_unreadable
from service.spec import JobState
from service.states import IllegalMoveError
from service.store.job_store import JobStore
from service.store.records import JobRecord, Reason, Waiting
from workers.versions import installed_version

LEASE = "dispatcher"
LEASE_S = 5.0  # renewed between jobs; as long as jobs wait after the dispatching process was killed
HEAD = 100  # of the queue: more than a round submits, few enough to be read twice a second

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class ClusterView:
    """What was seen of the cluster last: ``spec`` at ``seen_at``; ``fault`` says why it cannot be asked now."""

    spec: ClusterSpec | None = None
    seen_at: datetime | None = None
    reachable_since: datetime | None = None
    fault: str | None = None
    failures: int = 0

    @property
    def reachable(self) -> bool:
        """Whether the cluster told its shape when it was asked last."""
        return self.reachable_since is not None


class Dispatcher:
    """Carries out decisions, one ``step`` at a time. ``clock`` gives aware UTC times."""

    def __init__(
        self,
        store: JobStore,
        cluster: ClusterClient,
        *,
        holder: str,
        patience: Patience = DEFAULT_PATIENCE,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._holder = holder
        self._patience = patience
        self._clock = clock
        self._ask_again_at: datetime | None = None
        self._leased_at: datetime | None = None
        self._mute: dict[str, str] = {}  # job id -> why there was no answer about its run; asked longest ago first
        self._turn: str | None = None
        self.view = ClusterView()

    def step(self) -> None:
        """One round. Raises only what the store raises; faults of the cluster end in ``view``."""
        self._look()
        if not self._hold_lease():
            return
        submitted = self._store.submitted_jobs()
        head = self._head_of_queue()
        self._choose_mute({job.id for job in submitted})
        self._for_each(submitted, self._tend)
        self._for_each([job for job in head if job.spec_fault is not None], self._refuse)
        self._admit([job for job in head if job.spec_fault is None], promised=submitted)

    def release(self) -> None:
        """Let another dispatcher continue at once."""
        self._store.drop_lease(LEASE, holder=self._holder)

    # ---- the cluster

    def _look(self) -> None:
        if self._ask_again_at is not None and self._clock() < self._ask_again_at:
            return
        try:
            spec = self._cluster.shape()
        except (ClusterUnreachableError, ClusterTroubledError, ClusterRefusedError) as error:
            self._note_fault(error.message)
            return
        now = self._clock()
        self._ask_again_at = None
        self.view = ClusterView(spec=spec, seen_at=now, reachable_since=self.view.reachable_since or now)

    def _note_fault(self, fault: str) -> None:
        failures = self.view.failures + 1
        now = self._clock()
        self._ask_again_at = datetime.fromtimestamp(now.timestamp() + retry_delay_s(failures), UTC)
        self.view = replace(self.view, reachable_since=None, fault=fault, failures=failures)

    def _choose_mute(self, submitted: Set[str]) -> None:
        """Each unanswered question costs seconds, so of the runs without an answer one is asked about in a round."""
        self._mute = {job_id: fault for job_id, fault in self._mute.items() if job_id in submitted}
        self._turn = next(iter(self._mute), None)
        if self._turn is not None:
            self._mute[self._turn] = self._mute.pop(self._turn)

    def _ask(self, job: JobRecord, question: Callable[[str], _T]) -> _T:
        """An answer about one run. Raises ``ClusterRefusedError``, or ``ClusterTroubledError`` if there is none now."""
        assert job.submission_id is not None, "only claimed jobs have a run"
        if not self.view.reachable:
            raise ClusterTroubledError(self.view.fault or "the cluster was not asked yet")
        if job.id in self._mute and job.id != self._turn:
            raise ClusterTroubledError(self._mute[job.id])
        try:
            answer = question(job.submission_id)
        except ClusterUnreachableError as error:
            _log.warning("no answer about the driver of job %s: %s", job.id, error.message)
            self._mute[job.id] = error.message
            self._look()
            raise ClusterTroubledError(error.message) from error
        except (ClusterTroubledError, ClusterRefusedError) as error:
            _log.warning("the cluster complains about the driver of job %s: %s", job.id, error.message)
            raise
        self._mute.pop(job.id, None)
        return answer

    def _status(self, job: JobRecord) -> RunStatus | None:
        """What the cluster says about the job's driver, None if the cluster cannot be asked."""
        try:
            return self._ask(job, self._cluster.status)
        except (ClusterTroubledError, ClusterRefusedError) as error:
            return RunStatus(state=RunState.UNKNOWN, message=error.message) if self.view.reachable else None

    # ---- submitted jobs

    def _tend(self, job: JobRecord) -> None:
        now = self._clock()
        run = self._status(job) if needs_status(job, now=now, patience=self._patience) else None
        if run is not None and run.state.is_over:
            job = self._store.get_job(job.id)  # its last word may have come after our list was read
            if job.ended:
                return
        since = self.view.reachable_since or now
        verdict = judge(job, run, now=now, patience=self._patience, reachable_since=since)
        self._carry_out(job, verdict)

    def _carry_out(self, job: JobRecord, verdict: Verdict) -> None:
        if verdict.stop:
            self._stop(job)
        if verdict.target is not None:
            self._store.move(job.id, verdict.target, reason=verdict.reason, only_from=job.state)
        elif verdict.submit:
            self._submit(job)
        elif verdict.waiting is not None and _differs(job.waiting, verdict.waiting):
            self._store.set_waiting(job.id, verdict.waiting)

    def _submit(self, job: JobRecord) -> None:
        def submit(submission_id: str) -> None:
            entrypoint = f"python -m service.driver_main {job.id} {installed_version()}"
            metadata = {"name": job.spec.name}
            self._cluster.submit(job.id, submission_id=submission_id, entrypoint=entrypoint, metadata=metadata)

        try:
            self._ask(job, submit)
        except ClusterTroubledError:
            return  # whether it arrived, the next step finds out under the claimed name
        except ClusterRefusedError as error:
            reason = Reason(code=error.code, text=f"the cluster refused the driver: {error.message}")
            self._store.move(job.id, JobState.FAILED, reason=reason, only_from=JobState.PENDING)

    def _stop(self, job: JobRecord) -> None:
        with suppress(ClusterTroubledError, ClusterRefusedError):
            self._ask(job, self._cluster.stop)

    # ---- waiting jobs

    def _head_of_queue(self) -> list[JobRecord]:
        """As many waiting jobs as can matter now. Those that never fit step aside, so they hide nobody behind them."""
        head: list[JobRecord] = []
        able = 0
        while able < HEAD:
            piece = self._store.waiting_jobs(skip=len(head), limit=HEAD)
            head += piece
            able += sum(self._may_ever_start(job) for job in piece)
            if len(piece) < HEAD:
                break
        return head

    def _may_ever_start(self, job: JobRecord) -> bool:
        return self.view.spec is None or why_never(job.spec, self.view.spec) is None

    def _refuse(self, job: JobRecord) -> None:
        self._store.move(job.id, JobState.FAILED, reason=why_unreadable(job), only_from=JobState.PENDING)

    def _admit(self, queue: Sequence[JobRecord], *, promised: Sequence[JobRecord]) -> None:
        if not self.view.reachable or self.view.spec is None:
            fault = self.view.fault or "it was not asked yet"
            self._explain(queue, dict.fromkeys((job.id for job in queue), _unreachable(fault)))
            return
        admission = admit(queue, promised=promised, cluster=self.view.spec)
        self._for_each(admission.start, self._start)
        self._explain(queue, admission.waiting)

    def _start(self, job: JobRecord) -> None:
        self._submit(self._store.set_submission(job.id, job.id))

    def _explain(self, queue: Sequence[JobRecord], reasons: Mapping[str, Waiting]) -> None:
        news = {
            job.id: reasons[job.id] for job in queue if job.id in reasons and _differs(job.waiting, reasons[job.id])
        }
        if news:
            self._store.set_all_waiting(news)

    # ---- being one, and going on

    def _hold_lease(self) -> bool:
        now = self._clock()
        if self._leased_at is not None and (now - self._leased_at).total_seconds() < LEASE_S / 2:
            return True
        held = self._store.take_lease(LEASE, holder=self._holder, seconds=LEASE_S)
        self._leased_at = now if held else None
        return held

    def _for_each(self, jobs: Sequence[JobRecord], action: Callable[[JobRecord], None]) -> None:
        """Act for as long as the lease is ours: a slow cluster can make a round longer than it lasts."""
        for job in jobs:
            if not self._hold_lease():
                return
            self._guarded(action, job)

    def _guarded(self, action: Callable[[JobRecord], None], job: JobRecord) -> None:
        """One job that cannot be handled must not hold up the others."""
        try:
            action(job)
        except IllegalMoveError:
            _log.debug("job %s moved on before the dispatcher did", job.id)
        except Exception:
            _log.exception("the dispatcher could not handle job %s", job.id)


def _differs(old: Waiting | None, new: Waiting) -> bool:
    """Positions are counted when read, so they do not make a reason new."""
    return old is None or old.model_copy(update={"position": 0}) != new


def _unreachable(fault: str) -> Waiting:
    return Waiting(code="cluster_unreachable", reason=f"the cluster cannot be reached: {fault}")
