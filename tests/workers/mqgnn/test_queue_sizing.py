from dataclasses import replace

import pytest

from planner.plan import QueueBudget
from planner.queues import queue_capacity
from workers.mqgnn.bounded_queue import BoundedQueue
from workers.mqgnn.queue_sizing import QueueObservation, QueueWindow, next_capacity

CALM = QueueObservation(consume_per_s=10.0, p95_produce_s=0.25, mean_bytes=100.0, queued_bytes=300, has_starved=False)


def test_the_rule_of_capacity_by_hand():
    rates = {"consume_per_s": 10.0, "p95_produce_s": 0.25, "mean_bytes": 100.0}
    assert queue_capacity(**rates, budget_bytes=10_000) == 4  # ⌈2.5⌉ + 1
    assert queue_capacity(**rates, budget_bytes=250) == 2
    assert queue_capacity(**rates, budget_bytes=1) == 1


def test_a_queue_that_neither_starves_nor_fills_stays_as_it_is():
    assert next_capacity(5, CALM, max_bytes=1000) == 5


def test_a_starved_consumer_gains_one_place_as_far_as_bytes_allow():
    starved = replace(CALM, has_starved=True)
    assert next_capacity(5, starved, max_bytes=1000) == 6
    assert next_capacity(10, starved, max_bytes=1000) == 10


def test_above_the_high_water_mark_the_queue_shrinks_at_once_to_what_the_rates_call_for():
    full = replace(CALM, queued_bytes=901)
    assert next_capacity(9, full, max_bytes=1000) == 4
    assert next_capacity(2, replace(full, has_starved=True), max_bytes=1000) == 2


def test_the_controller_replayed():
    """Starved for a while, then calm, then batches five times as large."""
    capacity, seen = 2, []
    starved, large = replace(CALM, has_starved=True), replace(CALM, mean_bytes=500.0, queued_bytes=950)
    for observed in (starved, starved, starved, CALM, CALM, large, large, CALM, starved):
        capacity = next_capacity(capacity, observed, max_bytes=1000)
        seen.append(capacity)
    assert seen == [3, 4, 5, 5, 5, 2, 2, 2, 3]


def test_a_window_tells_rates_and_sizes_since_it_was_last_asked():
    queue = BoundedQueue(QueueBudget(name="sample", max_items=8, max_bytes=1000))
    window = QueueWindow()
    assert window.look(queue.counters(), at_s=0.0, p95_produce_s=0.1) is None
    for ticket in range(4):
        queue.put(ticket, nbytes=10 + ticket, ticket=ticket)
    queue.get()
    queue.get()
    seen = window.look(queue.counters(), at_s=0.5, p95_produce_s=0.1)
    assert seen == QueueObservation(
        consume_per_s=4.0, p95_produce_s=0.1, mean_bytes=11.5, queued_bytes=25, has_starved=False
    )
    assert window.look(queue.counters(), at_s=0.9, p95_produce_s=0.1) is None


@pytest.mark.parametrize("wanted", [1, 3])
def test_a_queue_that_shrinks_keeps_what_it_holds_and_takes_no_more_until_there_is_room(wanted):
    queue = BoundedQueue(QueueBudget(name="sample", max_items=4, max_bytes=1000))
    for ticket in range(4):
        queue.put(ticket, nbytes=1, ticket=ticket)
    queue.resize(wanted)
    counters = queue.counters()
    assert (counters.depth, counters.max_items, counters.queued_bytes) == (4, wanted, 4)
    assert [queue.get().item for _ in range(4)] == [0, 1, 2, 3]
