import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from planner.plan import QueueBudget
from workers.mqgnn.bounded_queue import BoundedQueue, QueueAbortedError


def make_queue(*, max_items: int = 4, max_bytes: int = 100) -> BoundedQueue:
    return BoundedQueue(QueueBudget(name="sample", max_items=max_items, max_bytes=max_bytes))


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def waiting(future) -> bool:
    """Whether the call is still blocked after a moment that a free call would not need."""
    return not threading.Event().wait(0.02) and not future.done()


def test_items_come_out_in_the_order_of_their_tickets_whoever_puts_first(threads):
    queue = make_queue()
    late = [threads.submit(queue.put, ticket, nbytes=1, ticket=ticket) for ticket in (3, 2, 1)]
    assert all(waiting(future) for future in late)
    queue.put(0, nbytes=1, ticket=0)
    assert [queue.get(timeout_s=5) for _ in range(4)] == [(0, 0), (1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(("budget", "nbytes"), [({"max_items": 2}, 1), ({"max_bytes": 100}, 50)])
def test_a_full_queue_makes_the_producer_wait_until_there_is_room(threads, budget, nbytes):
    queue = make_queue(**budget)
    for ticket in range(2):
        queue.put("item", nbytes=nbytes, ticket=ticket)
    third = threads.submit(queue.put, "item", nbytes=nbytes, ticket=2)
    assert waiting(third)
    queue.get()
    third.result(timeout=5)


def test_queued_bytes_never_exceed_the_budget_at_any_instant(threads):
    queue, sizes = make_queue(max_items=1000, max_bytes=100), [7 * ticket % 60 + 1 for ticket in range(400)]

    def produce(first: int) -> None:
        for ticket in range(first, len(sizes), 4):
            queue.put(ticket, nbytes=sizes[ticket], ticket=ticket)

    producers = [threads.submit(produce, first) for first in range(4)]
    assert [queue.get(timeout_s=5).item for _ in sizes] == [*range(len(sizes))]
    for future in producers:
        future.result(timeout=5)
    assert 50 < queue.counters().high_water_bytes <= 100
    assert queue.counters().depth == 0


def test_reserved_places_count_from_the_start_and_the_first_is_alone_until_it_has_come(threads):
    queue = make_queue(max_items=3)
    queue.reserve(ticket=0)
    second = threads.submit(queue.reserve, ticket=1)
    assert waiting(second)
    queue.put("item", nbytes=10, ticket=0)
    second.result(timeout=5)
    queue.reserve(ticket=2)
    fourth = threads.submit(queue.reserve, ticket=3)
    assert waiting(fourth)
    counters = queue.counters()
    assert (counters.depth, counters.in_flight) == (1, 2)
    queue.get()
    fourth.result(timeout=5)


def test_what_is_under_way_counts_as_many_bytes_as_the_largest_so_far(threads):
    queue = make_queue(max_items=10, max_bytes=100)
    queue.reserve(ticket=0)
    queue.put("item", nbytes=40, ticket=0)
    queue.reserve(ticket=1)
    third = threads.submit(queue.reserve, ticket=2)
    assert waiting(third)
    queue.get()
    third.result(timeout=5)


def test_places_are_taken_in_the_order_of_their_tickets(threads):
    queue = make_queue()
    second = threads.submit(queue.reserve, ticket=1)
    assert waiting(second)
    queue.reserve(ticket=0)
    queue.put("item", nbytes=1, ticket=0)
    second.result(timeout=5)
    assert queue.counters().in_flight == 1


def test_who_waits_for_a_place_is_turned_away_by_an_abort(threads):
    queue = make_queue()
    queue.reserve(ticket=0)
    second = threads.submit(queue.reserve, ticket=1)
    assert waiting(second)
    queue.abort()
    with pytest.raises(QueueAbortedError):
        second.result(timeout=5)


def test_an_item_larger_than_the_whole_budget_is_admitted_only_when_the_queue_is_empty(threads):
    queue = make_queue(max_bytes=100)
    queue.put("small", nbytes=1, ticket=0)
    large = threads.submit(queue.put, "large", nbytes=500, ticket=1)
    assert waiting(large)
    assert queue.get().item == "small"
    large.result(timeout=5)
    after = threads.submit(queue.put, "after", nbytes=1, ticket=2)
    assert waiting(after)
    assert queue.get().item == "large"
    after.result(timeout=5)


def test_a_closed_queue_gives_what_it_holds_and_then_says_that_it_ended():
    queue = make_queue()
    queue.put("last", nbytes=1, ticket=0)
    queue.close()
    assert queue.get().item == "last"
    assert queue.get() is None


def test_closing_wakes_consumers_that_wait(threads):
    queue = make_queue()
    waiters = [threads.submit(queue.get) for _ in range(3)]
    assert all(waiting(future) for future in waiters)
    queue.close()
    assert [future.result(timeout=5) for future in waiters] == [None, None, None]


def test_aborting_turns_away_everyone_who_waits_and_everyone_who_comes(threads):
    full, empty = make_queue(max_items=1), make_queue()
    full.put("item", nbytes=10, ticket=0)
    blocked = [
        threads.submit(full.put, "item", nbytes=1, ticket=1),
        threads.submit(full.put, "item", nbytes=1, ticket=2),
        threads.submit(empty.get),
    ]
    assert all(waiting(future) for future in blocked)
    full.abort()
    empty.abort()
    for future in blocked:
        with pytest.raises(QueueAbortedError):
            future.result(timeout=5)
    with pytest.raises(QueueAbortedError):
        full.put("item", nbytes=1, ticket=1)
    with pytest.raises(QueueAbortedError):
        full.get()
    assert full.counters().depth == 0


def test_waiting_for_an_item_has_a_limit():
    with pytest.raises(TimeoutError):
        make_queue().get(timeout_s=0.01)


def test_counters_tell_what_the_queue_has_seen():
    queue = make_queue()
    for ticket, nbytes in enumerate((10, 30, 20)):
        queue.put("item", nbytes=nbytes, ticket=ticket)
    queue.get()
    counters = queue.counters()
    assert (counters.depth, counters.high_water_bytes) == (2, 60)
