"""A job's plan."""

from fastapi import APIRouter

from api.deps import BackendDep
from api.openapi import problems
from api.schemas.parts import PlanView
from api.views import measured_view
from planner.explain import describe_plan

router = APIRouter(tags=["jobs"])


@router.get(
    "/jobs/{job_id}/plan",
    summary="Read the plan",
    responses=problems("job_not_found", "not_planned", "plan_unreadable", "store_unavailable"),
)
def read_plan(backend: BackendDep, job_id: str) -> PlanView:
    """How the job is trained and why, in data and in words; its prediction beside what was measured so far."""
    plan, measured = backend.jobs.plan(job_id)
    return PlanView(plan=plan, words=describe_plan(plan), predicted=plan.predicted, measured=measured_view(measured))
