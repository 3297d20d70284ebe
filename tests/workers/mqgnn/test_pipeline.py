import gc
import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from planner.errors import PlanInvalidError
from planner.plan import QueueBudget
from workers.errors import StageFailedError
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.stage import FIRST_ITEM_S, Stage, StageMeter, StageWorker
from workers.watch.progress import GiveUp


@dataclass(frozen=True)
class Item:
    """A number that claims a size."""

    value: int
    nbytes: int = 8


def stage(name: str, function: Callable[[Item], Item], *, num_workers: int = 1) -> Stage:
    return Stage(name, lambda: function, num_workers)


def pipeline(
    *stages: Stage,
    pipelined: bool = True,
    max_items: int = 2,
    hang_limit_s: float = 20.0,
    give_up: GiveUp | None = None,
) -> Pipeline:
    budgets = [QueueBudget(name=each.name, max_items=max_items, max_bytes=64) for each in stages]
    return Pipeline(stages, budgets=budgets, pipelined=pipelined, hang_limit_s=hang_limit_s, give_up=give_up)


def values(made: Pipeline, count: int) -> list[int]:
    with made.run(Item(value) for value in range(count)) as items:
        return [item.value for item in items]


def add(number: int) -> Callable[[Item], Item]:
    return lambda item: Item(item.value + number)


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_items_pass_all_stages_and_keep_their_order(pipelined, num_workers):
    made = pipeline(stage("first", add(1), num_workers=num_workers), stage("second", add(10)), pipelined=pipelined)
    assert values(made, 50) == [*range(11, 61)]


@pytest.mark.parametrize("pipelined", [True, False])
def test_no_tasks_give_no_items(pipelined):
    assert values(pipeline(stage("first", add(1)), pipelined=pipelined), 0) == []


def test_a_slow_worker_does_not_change_the_order():
    release = threading.Event()

    def work(item: Item) -> Item:
        if item.value == 0:
            assert release.wait(10)
        if item.value == 3:
            release.set()
        return item

    # with four workers the fourth item is worked on while the first waits for it
    assert values(pipeline(stage("first", work, num_workers=4)), 8) == [*range(8)]


def test_stages_overlap():
    meet = threading.Barrier(2, timeout=10)  # passes only when both stages work at the same time

    def work(item: Item) -> Item:
        if item.value in (1, 2):
            meet.wait()
        return item

    first = stage("first", lambda item: work(item) if item.value == 2 else item)
    second = stage("second", lambda item: work(item) if item.value == 1 else item)
    assert values(pipeline(first, second), 4) == [*range(4)]


def test_producers_run_ahead_no_further_than_the_queues_allow():
    started, made = [], None

    def work(item: Item) -> Item:
        started.append(item.value)
        return item

    made = pipeline(stage("first", work), max_items=2)
    with made.run(Item(value) for value in range(100)) as items:
        next(items)
        queue = made.queues["first"]
        while queue.counters().depth < 2:
            threading.Event().wait(0.001)
        threading.Event().wait(0.05)
        assert len(started) <= 1 + 2 + 1  # taken, queued, in the worker's hands


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_failing_stage_names_itself_and_keeps_its_traceback(pipelined):
    def burst(item: Item) -> Item:
        if item.value == 3:
            raise KeyError("no such feature")
        return item

    made = pipeline(stage("sample", add(0)), stage("prepare", burst), pipelined=pipelined)
    with pytest.raises(StageFailedError, match=r"stage 'prepare' failed on Item\(value=3") as caught:
        values(made, 10)
    assert caught.value.details["stage"] == "prepare"
    assert "in burst" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_worker_that_cannot_be_built_fails_its_stage(pipelined):
    def refuse() -> Callable[[Item], Item]:
        raise MemoryError("scratch table")

    with pytest.raises(StageFailedError, match=r"stage 'sample' failed on .*MemoryError: scratch table"):
        values(pipeline(Stage("sample", refuse), pipelined=pipelined), 3)


def test_items_before_the_failure_may_come_but_none_after_it():
    def burst(item: Item) -> Item:
        if item.value == 3:
            raise ValueError
        return item

    seen = []
    with (
        pytest.raises(StageFailedError),
        pipeline(stage("sample", burst, num_workers=2)).run(Item(value) for value in range(9)) as items,
    ):
        seen.extend(item.value for item in items)
    assert seen == [*range(len(seen))]
    assert len(seen) <= 3


def answers_once(stuck: threading.Event) -> Callable[[Item], Item]:
    def never_answers_again(item: Item) -> Item:
        if item.value:
            stuck.wait()
        return item

    return never_answers_again


def test_a_stage_that_stops_answering_fails_by_name_with_its_stack():
    stuck = threading.Event()
    made = pipeline(stage("sample", add(0)), stage("prepare", answers_once(stuck)), hang_limit_s=0.2)
    try:
        with pytest.raises(StageFailedError, match="stage 'prepare' has worked on one item for") as caught:
            values(made, 3)
        assert "in never_answers_again" in str(caught.value)
    finally:
        stuck.set()
    for thread in threading.enumerate():
        if thread.name.startswith("prepare"):
            thread.join(5)


def test_so_does_one_of_the_thread_that_trains():
    stuck = threading.Event()
    given_up: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def give_up(error: BaseException) -> None:
        given_up.put(error)
        stuck.set()

    made = pipeline(
        stage("sample", add(0)),
        stage("prepare", answers_once(stuck)),
        pipelined=False,
        hang_limit_s=0.2,
        give_up=give_up,
    )
    assert values(made, 3) == [0, 1, 2]
    with pytest.raises(StageFailedError, match="stage 'prepare' has worked on one item for") as caught:
        raise given_up.get(timeout=1)
    assert "in never_answers_again" in str(caught.value)
    assert given_up.empty()


def test_a_first_item_and_ten_times_the_longest_are_not_hurried():
    meter = StageMeter()
    worker = StageWorker(stage("sample", add(0)), meter=meter)
    assert worker.may_take_s(10.0) == FIRST_ITEM_S
    meter.add(0.5)
    assert worker.may_take_s(10.0) == 10.0
    meter.add(2.0)
    assert worker.may_take_s(10.0) == 20.0


def test_stages_that_are_slow_but_alive_are_not_taken_for_hanging():
    def slow(item: Item) -> Item:
        threading.Event().wait(0.06)
        return item

    made = pipeline(stage("first", slow), stage("second", slow), stage("third", slow), hang_limit_s=0.15)
    assert values(made, 3) == [0, 1, 2]


def test_a_consumer_that_leaves_early_stops_everything():
    made = pipeline(stage("first", add(1), num_workers=3), stage("second", add(1)))
    values = itertools.count()
    with made.run(map(Item, values)) as items:
        for item in items:
            if item.value > 5:
                break
    assert next(values) < 1000, "without an end, only as many were taken as the queues hold"


def test_an_error_of_the_consumer_comes_through_and_stops_everything():
    def consume() -> None:
        with pipeline(stage("first", add(1))).run(Item(value) for value in range(100)) as items:
            for item in items:
                _ = 1 // (item.value - 3)

    with pytest.raises(ZeroDivisionError):
        consume()


def test_fifty_starts_and_stops_leave_no_thread_and_no_garbage_that_complains(recwarn):
    made = pipeline(stage("first", add(1), num_workers=2), stage("second", add(1)))
    before = threading.active_count()
    for _ in range(50):
        with made.run(Item(value) for value in range(100)) as items:
            next(items)
        assert threading.active_count() == before
    gc.collect()
    assert not recwarn.list


def test_a_failing_task_source_fails_the_first_stage():
    def tasks():
        yield Item(0)
        raise OSError("list of seeds is gone")

    with (
        pytest.raises(StageFailedError, match="stage 'first' failed on the next task: OSError: list of seeds"),
        pipeline(stage("first", add(1))).run(tasks()) as items,
    ):
        list(items)


@pytest.mark.parametrize("found", [["sample"], ["sample", "prepare", "cook"], ["sample", "prepare", "sample"]])
def test_a_pipelined_run_takes_one_queue_budget_per_stage_and_no_other(found):
    with pytest.raises(PlanInvalidError, match=r"per stage, \['sample', 'prepare'\]; found \['sample'"):
        Pipeline(
            [stage("sample", add(1)), stage("prepare", add(1))],
            budgets=[QueueBudget(name=name, max_items=1, max_bytes=1) for name in found],
        )


def test_a_thread_that_the_system_refuses_leaves_none_behind(monkeypatch):
    before, start = threading.active_count(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "second-0":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        pytest.raises(RuntimeError, match="can't start new thread"),
        pipeline(stage("first", add(1)), stage("second", add(1))).run([Item(1)]),
    ):
        pass
    assert threading.active_count() == before


@pytest.mark.parametrize("pipelined", [True, False])
def test_stages_meter_their_work(pipelined):
    made = pipeline(stage("first", add(1), num_workers=2), pipelined=pipelined)
    values(made, 20)
    assert made.meters["first"].busy_s > 0
