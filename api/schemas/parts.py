"""The parts of a job as the API shows them: metrics, plan, artifacts."""

from datetime import datetime

from pydantic import Field

from api.schemas.view import View
from planner.plan import Plan, Prediction


class SeriesView(View):
    """One series of one rank, as columns of equal length; a value that is not a finite number is null."""

    name: str
    rank: int
    steps: tuple[int, ...]
    epochs: tuple[int, ...]
    values: tuple[float | None, ...]
    at: tuple[datetime, ...]


class MetricsView(View):
    """Series by name and rank."""

    series: tuple[SeriesView, ...]
    next_after_step: int | None = Field(
        default=None, description="ask with after_step=... for more; null if that is all"
    )


class MeasuredView(View):
    """What the run showed of what the plan predicted."""

    step_time_s: float | None = Field(description="median over reports of the slowest rank, the first report left out")
    memory_bytes: dict[int, int] = Field(description="peak per rank, over the process before the model was built")


class PlanView(View):
    """A plan, the plan in words, and its prediction beside what was measured."""

    plan: Plan
    words: str
    predicted: Prediction | None
    measured: MeasuredView


class ArtifactView(View):
    """One file that a job left behind."""

    path: str
    size_bytes: int
    modified_at: datetime
    href: str


class ArtifactListView(View):
    """All files that a job left behind: the exported model and complete checkpoints."""

    directory: str = Field(description="where they lie in the storage")
    items: tuple[ArtifactView, ...]
