"""Jobs as the API shows them."""

from datetime import datetime
from typing import Any

from pydantic import Field

from api.schemas.view import View
from service.spec import JobSpec, JobState


class ReasonView(View):
    """Why a job is where it is."""

    code: str
    text: str


class WaitingView(View):
    """Why a pending job does not start yet."""

    code: str
    reason: str
    asked: dict[str, float] = Field(description="logical CPUs and GPUs that the job asks for")
    available: dict[str, float] = Field(description="what of them could be had")
    position: int = Field(description="place in the queue: 1 is next, 0 once submitted to the cluster")


class TransitionView(View):
    """One move between states; ``source`` is null for the creation."""

    source: JobState | None
    target: JobState
    reason: ReasonView | None
    at: datetime


class JobLinks(View):
    """Where the parts of a job are."""

    events: str
    metrics: str
    plan: str
    logs: str
    artifacts: str
    cancel: str


class JobView(View):
    """One job."""

    id: str
    spec: JobSpec
    state: JobState
    reason: ReasonView | None = None
    waiting: WaitingView | None = None
    created_at: datetime
    updated_at: datetime
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    observed_at: datetime | None = Field(default=None, description="the last sign of life of the job's driver")
    stale: bool = Field(default=False, description="the driver has been silent: what is shown may be out of date")
    cancel_requested_at: datetime | None = None
    restarts: int = 0
    progress: dict[str, Any] = Field(default_factory=dict)
    result: dict[str, Any] | None = None
    links: JobLinks


class JobDetail(JobView):
    """One job with its history."""

    transitions: tuple[TransitionView, ...] = ()


class JobPageView(View):
    """Some jobs, newest first."""

    items: tuple[JobView, ...]
    next_cursor: str | None = Field(default=None, description="ask with cursor=... for the next page; null on the last")
