"""The values that go in and out of the store. They are also what the doors show, so times are always aware UTC."""

from datetime import datetime
from typing import Any

from pydantic import Field

from planner.frozen import Frozen
from service.spec import JobSpec, JobState
from service.states import TERMINAL


class Reason(Frozen):
    """Why a job is where it is: ``code`` is stable and meant for programs, ``text`` for people."""

    code: str
    text: str


class Waiting(Frozen):
    """Why a pending job does not start, with the numbers. ``position`` in the queue: 1 is next, 0 once submitted."""

    code: str
    reason: str
    asked: dict[str, float] = Field(default_factory=dict)
    available: dict[str, float] = Field(default_factory=dict)
    position: int = 0


class JobRecord(Frozen):
    """One job as the database knows it.

    ``spec_fault`` says why a spec of an older version cannot be read whole; ``observed_at`` is the driver's last sign
    of life, ``world_size`` the ranks of its plan (None before it has one).
    """

    id: str
    spec: JobSpec
    spec_fault: str | None = None
    state: JobState
    reason: Reason | None = None
    created_at: datetime
    updated_at: datetime
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    observed_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    waiting: Waiting | None = None
    submission_id: str | None = None
    world_size: int | None = None
    restarts: int = 0
    progress: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in TERMINAL


class Transition(Frozen):
    """One move of a job; ``source`` is None for its creation."""

    job_id: str
    source: JobState | None
    target: JobState
    reason: Reason | None
    at: datetime


class Event(Frozen):
    """One entry of the event log. ``id`` grows over all jobs, so a reader resumes after the last one it saw."""

    id: int
    job_id: str
    type: str
    data: dict[str, Any]
    at: datetime


class MetricPoint(Frozen):
    """One value of one series of one rank. A value that is not a number survives as NaN."""

    rank: int
    name: str
    step: int
    epoch: int
    value: float
    at: datetime


class JobPage(Frozen):
    """Some jobs, newest first, and the cursor of the next page (None on the last)."""

    items: tuple[JobRecord, ...]
    next_cursor: str | None = None


class MetricPage(Frozen):
    """Points in the order of their steps; a step is never cut in two. ``next_after_step`` is None on the last page."""

    points: tuple[MetricPoint, ...]
    next_after_step: int | None = None
