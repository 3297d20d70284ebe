"""A job's log, in pieces."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from api.deps import BackendDep
from api.openapi import problems
from service.job_log import read_log, tail_offset
from workers.training.folder import Folder

router = APIRouter(tags=["jobs"])

NEXT_OFFSET = "Graphmill-Next-Offset"
LOG_COMPLETE = "Graphmill-Log-Complete"
_HEADERS = {
    NEXT_OFFSET: {"description": "the offset to ask from next", "schema": {"type": "integer"}},
    LOG_COMPLETE: {
        "description": "whether the job has ended, its log has come to rest, and this was its last piece",
        "schema": {"type": "boolean"},
    },
}


@router.get(
    "/jobs/{job_id}/logs",
    summary="Read the log",
    response_class=PlainTextResponse,
    responses={
        200: {"description": "A piece of the log", "headers": _HEADERS},
        **problems("job_not_found", "log_offset_beyond_end", "request_invalid", "store_unavailable"),
    },
)
def read_logs(
    backend: BackendDep,
    job_id: str,
    offset: Annotated[int, Query(ge=0, description="byte to start from")] = 0,
    tail: Annotated[
        int | None, Query(ge=1, le=10_000, description="start at the last lines; offset is ignored")
    ] = None,
    limit: Annotated[int, Query(ge=1024, le=4_194_304, description="most bytes of one piece")] = 262_144,
) -> PlainTextResponse:
    """A piece of the driver's log from `offset` on, ending after a line where possible; a very long line is cut.

    To follow a log, ask again from `Graphmill-Next-Offset` until `Graphmill-Log-Complete` is true. A job that has not
    begun has an empty log.
    """
    ended = backend.jobs.store.get_job(job_id).ended  # asked first: what is written after it is told in the next piece
    log = Folder(backend.settings.job_uri(job_id)) / "logs"
    start = offset if tail is None else tail_offset(log, lines=tail)
    piece = read_log(log, offset=start, limit=limit)
    complete = "true" if ended and piece.at_end and piece.is_quiet else "false"
    return PlainTextResponse(piece.text, headers={NEXT_OFFSET: str(piece.next_offset), LOG_COMPLETE: complete})
