"""What routes are given: the backend behind them, the caller's right to be here, the body of a request."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from api.auth import KeyCheck
from api.errors import BodyTooLargeError, MalformedJSONError, MediaTypeError, UnauthorizedError
from api.readiness import DatabaseCheck
from service.cluster import ClusterClient
from service.dispatch_loop import DispatchLoop
from service.faults import show
from service.jobs import Jobs
from service.settings import Settings


@dataclass
class Backend:
    """Everything that the routes stand on. ``closing`` tells open streams to end; ``streams`` counts them."""

    settings: Settings
    jobs: Jobs
    loop: DispatchLoop
    key: KeyCheck
    database: DatabaseCheck
    cluster: ClusterClient
    closing: bool = field(default=False)
    streams: int = field(default=0)


def _backend(request: Request) -> Backend:
    backend: Backend = request.app.state.backend
    return backend


BackendDep = Annotated[Backend, Depends(_backend)]

_DRAINED = 16  # times the limit

_bearer = HTTPBearer(auto_error=False, description="The API key; the embedded mode keeps it in home/api_key.")


def require_key(
    backend: BackendDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Let only those in who have the key. Raises ``UnauthorizedError``."""
    if credentials is None:
        raise UnauthorizedError("send the API key as `Authorization: Bearer KEY`")
    if not backend.key.accepts(credentials.credentials):
        raise UnauthorizedError("this is not the API key of this service")


async def _document(request: Request, backend: BackendDep) -> Any:
    """The decoded body. NaN and infinity pass here, so that the spec's check can point at them.

    Raises ``MediaTypeError``, ``BodyTooLargeError``, ``MalformedJSONError``.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise MediaTypeError(f"send JSON as application/json; found {media_type or 'no content type'}")
    body = await _read_body(request, limit=backend.settings.max_body_bytes)
    try:
        return json.loads(body.decode("utf-8-sig"), object_pairs_hook=_unique_keys)
    except RecursionError as error:
        raise MalformedJSONError("the body is nested too deep to be read") from error
    except ValueError as error:  # also of a wrong encoding and of numbers with thousands of digits
        raise MalformedJSONError(f"the body is not JSON: {error}") from error


async def _read_body(request: Request, *, limit: int) -> bytes:
    """The body, if it is small enough. Starlette's own limit cannot answer with a problem document.

    Somewhat too much is read to its end and dropped: a client that is still sending would otherwise find its connection
    reset, and never see why.
    """
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= limit:
            body += piece
        elif size > _DRAINED * limit:
            break
    if size > limit:
        raise BodyTooLargeError(
            f"the body has at least {size} bytes, the limit is {limit}; give data by path, not within the job spec",
            limit=limit,
        )
    return bytes(body)


DocumentDep = Annotated[Any, Depends(_document)]


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {show(name)} appears twice in one object")
        found[name] = value
    return found
