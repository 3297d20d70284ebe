"""Following a job over connections that break: its events, and its log. Both end only when the job has ended."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from api.transport import RETRIED, Pauses, Transport
from service.spec import JobState
from service.states import TERMINAL

_READ_TIMEOUT_S = 30.0  # the service sends a comment every 10 s, so a longer silence is a broken connection


@dataclass(frozen=True)
class FollowedEvent:
    """One event of a job. ``id`` is None for ``progress`` and ``waiting``, of which only the newest counts."""

    id: int | None
    type: str
    data: dict[str, Any]

    @property
    def final_state(self) -> JobState | None:
        """The state in which the job has ended, if this is its last event."""
        state = JobState(self.data["state"]) if self.type == "state" else None
        return state if state in TERMINAL else None


def follow_events(transport: Transport, job_id: str, *, after: int) -> Iterator[FollowedEvent]:
    """Events after id ``after``, over as many connections as it takes; the last is the terminal one.

    If the terminal event was seen before, there are none. Raises ``RequestRefusedError``, ``ServiceUnreachableError``.
    """
    pauses = Pauses(transport.patience_s)
    path = f"/v1/jobs/{job_id}/events"
    while True:
        cause: Exception = httpx.ReadError("the stream ended before the job did")
        try:
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
            with transport.stream(path, headers=headers, read_timeout_s=_READ_TIMEOUT_S) as response:
                if response.status_code == 204:
                    return
                pauses.reset()  # a quiet stream is an answer too
                for event in parse_events(response.iter_lines()):
                    after = after if event.id is None else event.id
                    yield event
                    if event.final_state is not None:
                        return
        except RETRIED as error:
            cause = error
        transport.pause_after(cause, pauses)


def read_log(transport: Transport, job_id: str, *, tail: int | None, follow: bool) -> Iterator[str]:
    """Pieces of the log, from the beginning or the last ``tail`` lines on; with ``follow`` until the job has ended.

    Raises ``RequestRefusedError``, ``ServiceUnreachableError``.
    """
    idle = Pauses(math.inf, longest_s=0.5)
    params = {"offset": 0} if tail is None else {"tail": tail}
    while True:
        response = transport.request("GET", f"/v1/jobs/{job_id}/logs", params=params)
        if response.text:
            yield response.text
            idle.reset()
        params = {"offset": int(response.headers["Graphmill-Next-Offset"])}
        if response.headers["Graphmill-Log-Complete"] == "true" or not (follow or response.text):
            return
        if not response.text:
            idle.wait()


def parse_events(lines: Iterable[str]) -> Iterator[FollowedEvent]:
    """Server-sent events from lines. An event that was cut off by the end of the stream is not told."""
    fields: dict[str, str] = {}
    for line in lines:
        if line == "":
            if "data" in fields:
                number = fields.get("id")
                yield FollowedEvent(
                    id=None if number is None else int(number),
                    type=fields.get("event", "message"),
                    data=json.loads(fields["data"]),
                )
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name] = f"{fields[name]}\n{value}" if name == "data" and "data" in fields else value
