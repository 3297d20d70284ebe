"""Errors as problem documents (RFC 9457). One table says which status and title each code has.

A code that is not in the table is a fault of ours: it answers 500 without its text, which goes to the log.
"""

import logging
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.schemas.problems import PROBLEM_MEDIA_TYPE, FaultView, Problem
from planner.errors import GraphmillError
from service.faults import show

_log = logging.getLogger(__name__)
_RETRY_AFTER_S = "2"


class UnauthorizedError(GraphmillError):
    """No API key, or a wrong one."""

    code = "unauthorized"


class MalformedJSONError(GraphmillError):
    """The body is not JSON."""

    code = "malformed_json"


class BodyTooLargeError(GraphmillError):
    """The body is larger than this service reads."""

    code = "body_too_large"


class MediaTypeError(GraphmillError):
    """The body is declared to be something else than JSON."""

    code = "unsupported_media_type"


class EventIdInvalidError(GraphmillError):
    """The Last-Event-ID header holds no event id."""

    code = "event_id_invalid"


class RangeError(GraphmillError):
    """The Range header asks for bytes that the file does not have, or is not written as one."""

    code = "range_not_satisfiable"


class TooManyStreamsError(GraphmillError):
    """This process holds as many event streams as it may."""

    code = "too_many_streams"


class ProblemKind(NamedTuple):
    """Status and title of one code."""

    status: int
    title: str


PROBLEMS: dict[str, ProblemKind] = {
    "malformed_json": ProblemKind(400, "The body is not JSON"),
    "cursor_invalid": ProblemKind(400, "The page cursor is not ours"),
    "event_id_invalid": ProblemKind(400, "The event id is not ours"),
    "unauthorized": ProblemKind(401, "An API key is required"),
    "job_not_found": ProblemKind(404, "There is no such job"),
    "artifact_not_found": ProblemKind(404, "There is no such artifact"),
    "not_planned": ProblemKind(404, "The job has no plan yet"),
    "plan_unreadable": ProblemKind(404, "The plan was stored by a version with other rules"),
    "route_not_found": ProblemKind(404, "There is no such address"),
    "method_not_allowed": ProblemKind(405, "The address does not take this method"),
    "idempotency_key_reused": ProblemKind(409, "The idempotency key belongs to another spec"),
    "job_ended": ProblemKind(409, "The job has ended already"),
    "body_too_large": ProblemKind(413, "The body is too large"),
    "unsupported_media_type": ProblemKind(415, "The body must be JSON"),
    "log_offset_beyond_end": ProblemKind(416, "The log is shorter than that"),
    "range_not_satisfiable": ProblemKind(416, "The file has no such bytes"),
    "spec_invalid": ProblemKind(422, "The job spec has faults"),
    "request_invalid": ProblemKind(422, "A parameter has faults"),
    "queue_full": ProblemKind(429, "Too many jobs wait"),
    "internal_error": ProblemKind(500, "The service has a fault"),
    "store_unavailable": ProblemKind(503, "The database cannot be reached"),
    "too_many_streams": ProblemKind(503, "Too many event streams are open"),
}
_CODES_OF_STATUS = {404: "route_not_found", 405: "method_not_allowed"}


def install_error_handlers(app: FastAPI) -> None:
    """Every way to fail ends in a problem document."""
    app.add_exception_handler(GraphmillError, _on_graphmill_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_bad_parameters)
    app.add_exception_handler(SQLAlchemyError, _on_database_error)
    app.add_exception_handler(ClientDisconnect, _on_hang_up)
    app.add_exception_handler(Exception, _on_unknown_error)


def problem_response(
    request: Request,
    code: str,
    detail: str,
    *,
    errors: tuple[FaultView, ...] = (),
    state: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """A problem document with the status of its code; answers that ask for patience say for how long."""
    kind = PROBLEMS[code]
    problem = Problem(
        type=f"urn:graphmill:problem:{code}",
        code=code,
        title=kind.title,
        status=kind.status,
        detail=detail,
        instance=request.url.path,
        errors=errors,
        state=state,
    )
    headers = dict(headers or {})
    if kind.status in (429, 503):
        headers.setdefault("Retry-After", _RETRY_AFTER_S)
    if kind.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    content = problem.model_dump(mode="json", exclude_none=True)
    return JSONResponse(content, status_code=kind.status, headers=headers, media_type=PROBLEM_MEDIA_TYPE)


async def _on_graphmill_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GraphmillError)
    if error.code not in PROBLEMS:
        return await _on_unknown_error(request, error)
    faults = tuple(FaultView.model_validate(fault) for fault in error.details.get("faults", ()))
    state = error.details.get("state")
    return problem_response(
        request,
        error.code,
        error.message,
        errors=faults,
        state=None if state is None else str(state),
        headers=error.details.get("headers"),
    )


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES_OF_STATUS.get(error.status_code)
    if code is None:
        return await _on_unknown_error(request, error)
    details = {
        "route_not_found": f"there is nothing at {request.url.path}; /docs lists all addresses",
        "method_not_allowed": f"{request.url.path} does not take {request.method}",
    }
    return problem_response(request, code, details[code], headers=dict(error.headers or {}))


async def _on_bad_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = tuple(_parameter_fault(item) for item in error.errors())
    names = ", ".join(fault.pointer for fault in faults)
    return problem_response(request, "request_invalid", f"faults in {names}", errors=faults)


async def _on_database_error(request: Request, error: Exception) -> Response:
    _log.error("the database failed during %s %s: %s", request.method, request.url.path, error)
    return problem_response(request, "store_unavailable", "the database did not do its part; try again")


async def _on_unknown_error(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(request, "internal_error", "this is a fault of the service; its log has the details")


async def _on_hang_up(_request: Request, _error: Exception) -> Response:
    """The client left before its request was whole: nothing was done, and nobody reads this."""
    return Response(status_code=400)


def _parameter_fault(item: dict[str, Any]) -> FaultView:
    return FaultView(
        pointer="".join(f"/{part}" for part in item["loc"]), detail=f"found {show(item.get('input'))}", fix=item["msg"]
    )
