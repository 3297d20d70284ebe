"""What users do with jobs: submit, look, cancel. The doors call these; each is a few lines over the store.

A job is in the database before ``submit`` returns. Everything here answers from the store, so it is quick whatever the
cluster does.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from planner.errors import GraphmillError, PlanInvalidError
from planner.plan import MegaGraphPlan, MQGNNPlan
from service.faults import Fault
from service.settings import Settings
from service.spec import JobSpec, JobState
from service.store.errors import JobNotFoundError
from service.store.job_store import JobStore
from service.store.records import JobRecord, MetricPoint
from service.validation import parse_spec, spec_invalid


class NotPlannedError(GraphmillError):
    """The job has no plan yet, or ended before it was planned."""

    code = "not_planned"


class PlanUnreadableError(GraphmillError):
    """The job's plan was stored by a version with other rules."""

    code = "plan_unreadable"


@dataclass(frozen=True)
class Measured:
    """What the newest reports of a run show of what its plan predicted.

    ``step_time_s``: median over reports of the slowest rank; ``memory_bytes``: by rank, which reports its peak so far.
    """

    step_time_s: float | None
    memory_bytes: dict[int, int]


class Jobs:
    """The use cases around jobs. ``wake`` tells the dispatcher that there is news."""

    def __init__(self, store: JobStore, settings: Settings, *, wake: Callable[[], None]) -> None:
        self.store = store
        self.settings = settings
        self._wake = wake

    def submit(self, document: Any, *, idempotency_key: str | None = None) -> tuple[JobRecord, bool]:
        """Check a spec and store it: (record, True), or (the first job of this key, False).

        Raises ``SpecInvalidError``, ``QueueFullError``, ``IdempotencyConflictError``.
        """
        spec: JobSpec = parse_spec(document)
        self._check_source(spec)
        limit = self.settings.max_pending_jobs
        record, created = self.store.create_job(spec, idempotency_key=idempotency_key, max_pending=limit)
        self._wake()
        return record, created

    def _check_source(self, spec: JobSpec) -> None:
        """The job whose model is used must have finished, with the same kind and model."""
        if spec.from_job is None:
            return
        try:
            source = self.store.get_job(spec.from_job)
        except JobNotFoundError:
            fix = "give the id of a job of this service"
            raise spec_invalid(Fault(pointer="/from_job", detail=f"no job {spec.from_job}", fix=fix)) from None
        if source.state is not JobState.FINISHED:
            detail = f"job {source.id} is {source.state}"
            raise spec_invalid(Fault(pointer="/from_job", detail=detail, fix="give a job that has FINISHED"))
        if source.spec.task != "train":
            detail = f"job {source.id} used a model, it trained none"
            raise spec_invalid(Fault(pointer="/from_job", detail=detail, fix=f"give job {source.spec.from_job}"))
        for field in ("kind", "model"):
            if getattr(spec, field) != getattr(source.spec, field):
                detail = f"job {source.id} has another {field}: {getattr(source.spec, field)}"
                raise spec_invalid(Fault(pointer=f"/{field}", detail=detail, fix=f"repeat the {field} of that job"))

    def cancel(self, job_id: str) -> JobRecord:
        """Ask for the end of a job. Raises ``JobNotFoundError``, ``JobEndedError``."""
        record = self.store.request_cancel(job_id)
        self._wake()
        return record

    def is_stale(self, job: JobRecord) -> bool:
        """Whether the job should be speaking but has been silent, so that its state may be out of date."""
        if job.ended or job.state is JobState.PENDING:
            return False
        last = job.observed_at or job.started_at
        return last is None or datetime.now(UTC) - last > timedelta(seconds=self.settings.stale_after_s)

    def plan(self, job_id: str) -> tuple[MegaGraphPlan | MQGNNPlan, Measured]:
        """The plan of a job and what was measured of it so far. Raises ``NotPlannedError``, ``PlanUnreadableError``."""
        try:
            plan = self.store.get_plan(job_id)
        except PlanInvalidError as error:
            raise PlanUnreadableError(f"this version cannot read the plan of job {job_id}: {error.message}") from error
        if plan is None:
            state = self.store.get_job(job_id).state
            raise NotPlannedError(f"job {job_id} is {state} and has no plan; one is made in PLANNING", state=state)
        return plan, measure(self.store.newest_metrics(job_id, names=("step_time_s", "peak_memory_bytes")))


def measure(points: Sequence[MetricPoint]) -> Measured:
    """Sum up reported times and memory."""
    memory: defaultdict[int, int] = defaultdict(int)
    for point in points:
        if point.name == "peak_memory_bytes" and not math.isnan(point.value):
            memory[point.rank] = max(memory[point.rank], int(point.value))
    return Measured(
        step_time_s=steady_value(points, "step_time_s", worst=max), memory_bytes=dict(sorted(memory.items()))
    )


def steady_value(points: Sequence[MetricPoint], name: str, *, worst: Callable[[float, float], float]) -> float | None:
    """The median over reports of the worst rank's value. The first report holds the warm-up: it counts only alone."""
    by_step: dict[int, float] = {}
    for point in points:
        if point.name == name and not math.isnan(point.value):
            by_step[point.step] = worst(by_step.get(point.step, point.value), point.value)
    values = [by_step[step] for step in sorted(by_step)]
    return statistics.median(values[1:] or values) if values else None
