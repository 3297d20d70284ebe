"""Following a job: what is new since the reader's last look. The doors turn this into a stream, tests call it as it is.

Two kinds of news: logged events, which have an id and are never lost, and the latest progress and waiting reason, which
are only worth their newest value: they are read from the job itself and repeated to whoever connects again.
"""

from dataclasses import dataclass
from typing import Any

from service.spec import JobState
from service.states import TERMINAL
from service.store.job_store import JobStore
from service.store.records import Event, JobRecord

_BATCH = 500


@dataclass(frozen=True)
class News:
    """Something to tell a follower. ``id`` is None for values that are only worth their newest state."""

    id: int | None
    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Batch:
    """News in order. ``ended``: the terminal event is among them or was seen before, nothing will follow."""

    news: tuple[News, ...]
    ended: bool


class EventFeed:
    """The view of one follower of one job, from the event ``after`` on (0: from the beginning)."""

    def __init__(self, store: JobStore, job_id: str, *, after: int = 0) -> None:
        self._store = store
        self._job_id = job_id
        self._after = after
        self._told: dict[str, Any] = {}

    def poll(self) -> Batch:
        """What is new. Raises ``JobNotFoundError``."""
        job = self._store.get_job(self._job_id)  # before the events: a terminal state seen here has its event there
        events = self._store.events_after(self._job_id, self._after, _BATCH)
        if events:
            self._after = events[-1].id
        news = [News(id=event.id, type=event.type, data=_dated(event)) for event in events]
        caught_up = job.ended and len(events) < _BATCH
        ended = caught_up or any(_is_terminal(event) for event in events)
        if not ended:  # nothing comes after the end, also for who comes back after it
            news += self._changed(job)
        return Batch(news=tuple(news), ended=ended)

    def _changed(self, job: JobRecord) -> list[News]:
        waiting = None if job.waiting is None else job.waiting.model_dump()
        changes = []
        for type_, value in (("waiting", waiting), ("progress", job.progress)):
            if value and self._told.get(type_) != value:
                self._told[type_] = value
                changes.append(News(id=None, type=type_, data=value))
        return changes


def _dated(event: Event) -> dict[str, Any]:
    return {**event.data, "at": event.at.isoformat()}


def _is_terminal(event: Event) -> bool:
    return event.type == "state" and JobState(event.data["state"]) in TERMINAL
