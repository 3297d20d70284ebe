"""A job's metric series."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.deps import BackendDep
from api.openapi import problems
from api.schemas.parts import MetricsView
from api.views import metrics_view

router = APIRouter(tags=["jobs"])

_Rank = Annotated[int, Field(ge=0, lt=2**31)]  # as wide as the columns of the database


@router.get(
    "/jobs/{job_id}/metrics",
    summary="Read metric series",
    responses=problems("job_not_found", "request_invalid", "store_unavailable"),
)
def read_metrics(
    backend: BackendDep,
    job_id: str,
    name: Annotated[list[str] | None, Query(description="only these series; repeat the parameter")] = None,
    rank: Annotated[list[_Rank] | None, Query(description="only these ranks; repeat the parameter")] = None,
    after_step: Annotated[int | None, Query(ge=-1, lt=2**63, description="only later steps")] = None,
    limit: Annotated[int, Query(ge=1, le=100_000, description="about how many values")] = 10_000,
) -> MetricsView:
    """Series by name and rank, in the order of their steps. A step is never cut between two pages."""
    page = backend.jobs.store.metrics(job_id, names=name, ranks=rank, after_step=after_step, limit=limit)
    return metrics_view(page)
