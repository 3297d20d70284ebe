"""Submit, list, show, cancel."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from api.deps import BackendDep, DocumentDep
from api.openapi import JSON_SPEC_BODY, problems
from api.schemas.jobs import JobDetail, JobPageView, JobView
from api.views import job_detail, job_url, job_view
from service.spec import JobState

router = APIRouter(tags=["jobs"])

_KEY_TEXT = "Repeat it with the same spec to get the first job again instead of a second one."


@router.post(
    "/jobs",
    status_code=202,
    summary="Submit a job",
    response_model=JobView,
    responses=problems(
        "malformed_json",
        "idempotency_key_reused",
        "body_too_large",
        "unsupported_media_type",
        "spec_invalid",
        "request_invalid",
        "queue_full",
        "store_unavailable",
    ),
    openapi_extra=JSON_SPEC_BODY,
)
def submit_job(
    backend: BackendDep,
    document: DocumentDep,
    response: Response,
    idempotency_key: Annotated[
        str | None, Header(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$", description=_KEY_TEXT)
    ] = None,
) -> JobView:
    """Check a job spec and store it. The job is in the database before this answers; the Location header names it."""
    record, _ = backend.jobs.submit(document, idempotency_key=idempotency_key)
    response.headers["Location"] = job_url(record.id)
    return job_view(record, stale=backend.jobs.is_stale(record))


@router.get(
    "/jobs",
    summary="List jobs, newest first",
    responses=problems("cursor_invalid", "request_invalid", "store_unavailable"),
)
def list_jobs(
    backend: BackendDep,
    state: Annotated[JobState | None, Query(description="only jobs in this state")] = None,
    cursor: Annotated[str | None, Query(max_length=200, description="next_cursor of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> JobPageView:
    """A page of jobs. A job that arrives meanwhile neither shifts nor repeats an entry."""
    page = backend.jobs.store.list_jobs(state=state, cursor=cursor, limit=limit)
    items = tuple(job_view(record, stale=backend.jobs.is_stale(record)) for record in page.items)
    return JobPageView(items=items, next_cursor=page.next_cursor)


@router.get("/jobs/{job_id}", summary="Show a job", responses=problems("job_not_found", "store_unavailable"))
def show_job(backend: BackendDep, job_id: str) -> JobDetail:
    """One job with its history. Answers from the database, whatever the cluster does."""
    store = backend.jobs.store
    record, transitions = store.get_job(job_id), store.transitions(job_id)
    return job_detail(record, transitions, stale=backend.jobs.is_stale(record))


@router.post(
    "/jobs/{job_id}/cancel",
    status_code=202,
    summary="Cancel a job",
    responses=problems("job_not_found", "job_ended", "store_unavailable"),
)
def cancel_job(backend: BackendDep, job_id: str) -> JobView:
    """Ask for the end of a job. A job that has not been submitted is CANCELLED at once, any other within seconds.

    Asking again changes nothing, also when the job is CANCELLED by now. A job that FINISHED or FAILED answers 409.
    """
    record = backend.jobs.cancel(job_id)
    return job_view(record, stale=backend.jobs.is_stale(record))
