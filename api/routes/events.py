"""A job's events as a stream (server-sent events), resumable by ``Last-Event-ID``."""

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from anyio import to_thread
from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event
from starlette.types import Receive, Scope, Send

from api.deps import Backend, BackendDep
from api.errors import EventIdInvalidError, TooManyStreamsError
from api.openapi import problems
from service.events import EventFeed, News

router = APIRouter(tags=["jobs"])

_POLL_S, _LAZY_POLL_S = 0.25, 1.0  # while something happens, and when nothing has for a while
_PING_S = 10.0  # proxies drop connections that are silent for longer
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """A stream of events. FastAPI's own kind cannot look first and answer 404, 204 or 503 instead."""

    media_type = "text/event-stream"

    backend: Backend

    @classmethod
    def of(cls, backend: Backend, content: AsyncIterator[bytes]) -> "EventStream":
        """A stream that counts from now on, without a pause since the limit was looked at."""
        stream = cls(content, headers=_HEADERS)
        stream.backend = backend
        backend.streams += 1
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and make room for another, also if nobody was there to read it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.backend.streams -= 1


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job",
    response_class=EventStream,
    responses={
        204: {"description": "The job has ended and everything was told before: do not connect again"},
        **problems("event_id_invalid", "job_not_found", "too_many_streams", "store_unavailable"),
    },
)
async def follow_job(
    backend: BackendDep, job_id: str, last_event_id: Annotated[str | None, Header(description="resume after it")] = None
) -> Response:
    """Stream events until the job has ended; the last one is the `state` event of its terminal state.

    Logged events (`state`, `cancel_requested`, ...) have an id and are never lost: connect again with the last id seen.
    `progress` and `waiting` have none: only their newest value counts. A comment is sent when nothing happens.
    """
    feed = EventFeed(backend.jobs.store, job_id, after=_event_id(last_event_id))
    first = await to_thread.run_sync(feed.poll)  # an unknown job answers 404, not an empty stream
    if first.ended and not first.news:
        return Response(status_code=204)
    if backend.streams >= backend.settings.max_streams:
        raise TooManyStreamsError(f"{backend.streams} event streams are open, the limit of this process; try again")
    return EventStream.of(backend, _stream(backend, feed, first.news, ended=first.ended))


async def _stream(backend: Backend, feed: EventFeed, news: tuple[News, ...], *, ended: bool) -> AsyncIterator[bytes]:
    spoke_at, pause_s = time.monotonic(), _POLL_S
    while True:
        for item in news:
            yield _encode(item)
            spoke_at, pause_s = time.monotonic(), _POLL_S
        if ended or backend.closing:
            return
        if time.monotonic() - spoke_at > _PING_S:
            yield _PING
            spoke_at = time.monotonic()
        await anyio.sleep(pause_s)
        pause_s = min(pause_s * 1.2, _LAZY_POLL_S)
        batch = await to_thread.run_sync(feed.poll)
        news, ended = batch.news, batch.ended


def _encode(item: News) -> bytes:
    return format_sse_event(
        data_str=json.dumps(item.data, separators=(",", ":")),
        event=item.type,
        id=None if item.id is None else str(item.id),
    )


def _event_id(text: str | None) -> int:
    if text is None or text == "":
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise EventIdInvalidError(f"Last-Event-ID is the id of an event of this stream; found {text[:40]!r}")
    return int(text)
