"""The queue between two neighbouring stages: bounded by items and by bytes, in order, and quick to stop.

Invariant: the bytes queued never exceed ``max_bytes``, at any instant; the one exception is an item that is larger
than the whole budget, which is admitted only into an empty queue (refusing it would stop the pipeline for ever). An
item in a worker's hands is outside the queue and not counted. The bound on items may change while the queue is used.

A producer whose items are made elsewhere reserves a place before it asks for one. Then the bounds hold of what is under
way and what is queued together; an item under way counts as many bytes as the largest that came so far, and until one
has come there is one under way.

Several producers keep the order of one: each put carries a ticket, and puts are admitted in ticket order. Nobody
polls: waits end at the moment something changes.
"""

import threading
import time
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
    """What a queue holds now, may hold (items), and held at most (bytes); then sums since it was made."""

    depth: int
    max_items: int
    queued_bytes: int
    high_water_bytes: int
    num_put: int
    put_bytes: int
    num_got: int
    num_starved: int  # gets that found it empty
    starved_s: float
    num_reserved: int = 0

    @property
    def in_flight(self) -> int:
        """Reserved places whose items have not come yet."""
        return max(0, self.num_reserved - self.num_put)


class BoundedQueue(Generic[T]):
    """First in, first out, between the workers of one stage and those of the next."""

    def __init__(self, budget: QueueBudget) -> None:
        self.name, self.max_bytes = budget.name, budget.max_bytes
        self._max_items = budget.max_items
        self._entries: deque[tuple[T, int]] = deque()
        self._lock = threading.Lock()
        self._put_allowed = threading.Condition(self._lock)
        self._get_allowed = threading.Condition(self._lock)
        self._closed = self._aborted = False
        self._next_put = self._next_get = self._next_reserved = self._largest_bytes = 0
        self._queued_bytes = self._high_water_bytes = self._put_bytes = self._num_starved = 0
        self._starved_s = 0.0

    def reserve(self, *, ticket: int) -> None:
        """Take the place of ``ticket``, once all lower ones have theirs and it fits. Raises ``QueueAbortedError``."""
        with self._lock:
            self._put_allowed.wait_for(lambda: self._may_reserve(ticket))
            self._check_alive()
            self._next_reserved += 1
            self._put_allowed.notify_all()

    def put(self, item: T, *, nbytes: int, ticket: int) -> None:
        """Append ``item`` once all lower tickets are in and it fits. Raises ``QueueAbortedError``."""
        with self._lock:
            self._put_allowed.wait_for(lambda: self._may_put(ticket, nbytes))
            self._check_alive()
            self._entries.append((item, nbytes))
            self._next_put += 1
            self._queued_bytes += nbytes
            self._put_bytes += nbytes
            self._largest_bytes = max(self._largest_bytes, nbytes)
            self._high_water_bytes = max(self._high_water_bytes, self._queued_bytes)
            self._get_allowed.notify()
            self._put_allowed.notify_all()  # the holder of the next ticket may wait among others

    def get(self, *, timeout_s: float | None = None) -> Entry[T] | None:
        """Take the oldest item; None when the queue is closed and empty.

        Raises ``QueueAbortedError``, and ``TimeoutError`` when nothing came for ``timeout_s`` seconds.
        """
        with self._lock:
            self._wait_for_item(timeout_s)
            self._check_alive()
            if not self._entries:
                return None
            item, nbytes = self._entries.popleft()
            self._queued_bytes -= nbytes
            self._next_get += 1
            self._put_allowed.notify_all()
            return Entry(self._next_get - 1, item)

    def resize(self, max_items: int) -> None:
        """Let it hold ``max_items`` items, as far as its bytes allow; what is over stays until it is taken."""
        with self._lock:
            self._max_items = max_items
            self._put_allowed.notify_all()

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
            return QueueCounters(
                depth=len(self._entries),
                max_items=self._max_items,
                queued_bytes=self._queued_bytes,
                high_water_bytes=self._high_water_bytes,
                num_put=self._next_put,
                put_bytes=self._put_bytes,
                num_got=self._next_get,
                num_starved=self._num_starved,
                starved_s=self._starved_s,
                num_reserved=self._next_reserved,
            )

    def _wait_for_item(self, timeout_s: float | None) -> None:
        """Until there is one, or none will come. Raises ``TimeoutError``."""
        if self._may_get():
            return
        begin = time.perf_counter()
        self._num_starved += 1
        came = self._get_allowed.wait_for(self._may_get, timeout_s)
        self._starved_s += time.perf_counter() - begin
        if not came:
            raise TimeoutError

    def _may_put(self, ticket: int, nbytes: int) -> bool:
        fits = not self._entries or (
            len(self._entries) < self._max_items and self._queued_bytes + nbytes <= self.max_bytes
        )
        return self._aborted or (ticket == self._next_put and fits)

    def _may_reserve(self, ticket: int) -> bool:
        in_flight = self._next_reserved - self._next_put
        bytes_then = self._queued_bytes + (in_flight + 1) * self._largest_bytes
        taken = len(self._entries) + in_flight
        fits = not taken or (self._next_put and taken < self._max_items and bytes_then <= self.max_bytes)
        return self._aborted or (ticket == self._next_reserved and bool(fits))

    def _may_get(self) -> bool:
        return bool(self._aborted or self._entries or self._closed)

    def _check_alive(self) -> None:
        if self._aborted:
            raise QueueAbortedError(self.name)
