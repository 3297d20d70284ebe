"""The queue between two neighbouring stages: bounded by items and by bytes, in order, and quick to stop.

Invariant: the bytes queued never exceed ``max_bytes``, at any instant; the one exception is an item that is larger
than the whole budget, which is admitted only into an empty queue (refusing it would stop the pipeline for ever). An
item in a worker's hands is outside the queue and not counted.

Several producers keep the order of one: each put carries a ticket, and puts are admitted in ticket order. Nobody
polls: waits end at the moment something changes.
"""

import threading
from collections import deque
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from planner.plan import QueueBudget

T = TypeVar("T")


class Entry(NamedTuple, Generic[T]):
    """An item and its place in the order, counted from 0."""

    ticket: int
    item: T


class QueueAbortedError(RuntimeError):
    """Raised to whoever waits on a queue, or comes to it, after ``abort``. Ends workers; users never see it."""


@dataclass(frozen=True)
class QueueCounters:
    """What a queue holds now (items), and the most bytes that it ever held."""

    depth: int
    high_water_bytes: int


class BoundedQueue(Generic[T]):
    """First in, first out, between the workers of one stage and those of the next."""

    def __init__(self, budget: QueueBudget) -> None:
        self.name = budget.name
        self._budget = budget
        self._entries: deque[tuple[T, int]] = deque()
        self._lock = threading.Lock()
        self._put_allowed = threading.Condition(self._lock)
        self._get_allowed = threading.Condition(self._lock)
        self._closed = self._aborted = False
        self._next_put = self._next_get = 0
        self._queued_bytes = self._high_water_bytes = 0

    def put(self, item: T, *, nbytes: int, ticket: int) -> None:
        """Append ``item`` once all lower tickets are in and it fits. Raises ``QueueAbortedError``."""
        with self._lock:
            self._put_allowed.wait_for(lambda: self._may_put(ticket, nbytes))
            self._check_alive()
            self._entries.append((item, nbytes))
            self._next_put += 1
            self._queued_bytes += nbytes
            self._high_water_bytes = max(self._high_water_bytes, self._queued_bytes)
            self._get_allowed.notify()
            self._put_allowed.notify_all()  # the holder of the next ticket may wait among others

    def get(self, *, timeout_s: float | None = None) -> Entry[T] | None:
        """Take the oldest item; None when the queue is closed and empty.

        Raises ``QueueAbortedError``, and ``TimeoutError`` when nothing came for ``timeout_s`` seconds.
        """
        with self._lock:
            if not self._get_allowed.wait_for(self._may_get, timeout_s):
                raise TimeoutError
            self._check_alive()
            if not self._entries:
                return None
            item, nbytes = self._entries.popleft()
            self._queued_bytes -= nbytes
            self._next_get += 1
            self._put_allowed.notify_all()
            return Entry(self._next_get - 1, item)

    def close(self) -> None:
        """Nothing more will be put; what is queued can still be taken."""
        with self._lock:
            self._closed = True
            self._get_allowed.notify_all()

    def abort(self) -> None:
        """Drop what is queued and turn everybody away, those who wait now and those who come later."""
        with self._lock:
            self._aborted = True
            self._entries.clear()
            self._queued_bytes = 0
            self._get_allowed.notify_all()
            self._put_allowed.notify_all()

    def counters(self) -> QueueCounters:
        """A consistent picture of this moment."""
        with self._lock:
            return QueueCounters(depth=len(self._entries), high_water_bytes=self._high_water_bytes)

    def _may_put(self, ticket: int, nbytes: int) -> bool:
        fits = not self._entries or (
            len(self._entries) < self._budget.max_items and self._queued_bytes + nbytes <= self._budget.max_bytes
        )
        return self._aborted or (ticket == self._next_put and fits)

    def _may_get(self) -> bool:
        return bool(self._aborted or self._entries or self._closed)

    def _check_alive(self) -> None:
        if self._aborted:
            raise QueueAbortedError(self.name)
