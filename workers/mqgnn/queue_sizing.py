"""How many items a queue may hold while it runs: a pure rule on what was seen of it since the rule was last asked.

A queue begins as the plan sized it. It grows by one where its consumer has starved, and shrinks at once to what the
rates call for where its bytes came near their bound. Bytes are the queue's own law (``bounded_queue``), whatever is
decided here.
"""

import math
from dataclasses import dataclass

from planner.queues import queue_capacity
from workers.mqgnn.bounded_queue import QueueCounters

# Chosen: above this part of its bytes a queue may soon hold up its producer because of one large item.
_HIGH_WATER = 0.9
# Chosen: enough items for a rate and a tail, few enough to follow a change.
DECIDE_EVERY_ITEMS = 16


@dataclass(frozen=True)
class QueueObservation:
    """What was seen of a queue: items taken per second, seconds within which 95 % of the items were made, their mean
    size, the bytes that it holds now, and whether its consumer found it empty.
    """

    consume_per_s: float
    p95_produce_s: float
    mean_bytes: float
    queued_bytes: int
    has_starved: bool


def next_capacity(capacity: int, seen: QueueObservation, *, max_bytes: int) -> int:
    """Items that a queue of ``capacity`` items and at most ``max_bytes`` bytes should hold from now on."""
    if seen.queued_bytes > _HIGH_WATER * max_bytes:
        wanted = queue_capacity(
            consume_per_s=seen.consume_per_s,
            p95_produce_s=seen.p95_produce_s,
            mean_bytes=seen.mean_bytes,
            budget_bytes=max_bytes,
        )
        return min(capacity, wanted)
    fitting = max(1, int(max_bytes / max(1.0, seen.mean_bytes)))
    return min(capacity + 1, max(fitting, capacity)) if seen.has_starved else capacity


class QueueWindow:
    """Turns the counters of one queue into observations, each of the time since the one before."""

    def __init__(self) -> None:
        self._before: QueueCounters | None = None
        self._before_s = math.nan

    def look(self, now: QueueCounters, *, at_s: float, p95_produce_s: float) -> QueueObservation | None:
        """What was seen since the last call, at ``at_s`` on a clock; None the first time, and where nothing passed."""
        before, passed_s = self._before, at_s - self._before_s
        self._before, self._before_s = now, at_s
        if before is None or now.num_put == before.num_put or passed_s <= 0:
            return None
        return QueueObservation(
            consume_per_s=(now.num_got - before.num_got) / passed_s,
            p95_produce_s=p95_produce_s,
            mean_bytes=(now.put_bytes - before.put_bytes) / (now.num_put - before.num_put),
            queued_bytes=now.queued_bytes,
            has_starved=now.num_starved > before.num_starved,
        )
