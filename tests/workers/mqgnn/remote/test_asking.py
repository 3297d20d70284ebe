"""Whom a replica asks, what it does when somebody is lost, and how many requests are out at a time."""

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from planner.plan import QueueBudget
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.remote.played_actors import Make, PlayedActors, lose, played
from workers.data.graph import TRAIN
from workers.errors import StageFailedError
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.remote import asking
from workers.mqgnn.remote.asking import ASK_AGAIN_S, ActorChoice, Asker
from workers.mqgnn.remote.batch_maker import BatchRequest
from workers.mqgnn.remote.packing import PackedBatch, pack
from workers.mqgnn.seed_order import BatchTask, SeedOrder

GRAPH = clustered_graph(300)
ORDER = SeedOrder(np.flatnonzero(GRAPH.split == TRAIN), batch_size=32, seed=5)
NUM_TASKS = 20


def local() -> Callable[[BatchTask], MiniBatch]:
    sample, prepare = (
        stage.make_worker()
        for stage in build_stages(GRAPH, order=ORDER, fanouts=(3, 2), rank=0, device=torch.device("cpu"))
    )
    return lambda task: prepare(sample(task))


def maker() -> Make:
    make = local()
    return lambda request: pack(make(request.task))


def pipeline_of(
    actors: PlayedActors, *, num_ahead: int = 3, max_items: int = 4, max_bytes: int = 2**24, hang_limit_s: float = 20.0
) -> Pipeline:
    asker = Asker(actors, order=ORDER, rank=0, reading="gathered", in_place=None, hang_limit_s=hang_limit_s)
    budget = QueueBudget(name="remote", max_items=max_items, max_bytes=max_bytes)
    return Pipeline([asker.stage(num_ahead=num_ahead)], budgets=[budget], hang_limit_s=hang_limit_s)


@dataclass(frozen=True)
class Seen:
    nodes: list[list[int]]
    x: list[torch.Tensor]


def all_batches(pipeline: Pipeline) -> Seen:
    with pipeline.run(ORDER.tasks(0, NUM_TASKS)) as batches:
        taken = list(batches)
    return Seen([batch.node_ids.tolist() for batch in taken], [batch.x for batch in taken])


def assert_as_local(seen: Seen) -> None:
    make = local()
    expected = [make(task) for task in ORDER.tasks(0, NUM_TASKS)]
    assert seen.nodes == [batch.node_ids.tolist() for batch in expected]
    assert all(torch.equal(one, batch.x) for one, batch in zip(seen.x, expected, strict=True))


@pytest.fixture(autouse=True)
def no_thread_stays():
    before = {thread.name for thread in threading.enumerate()}
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("remote-")]
    assert not set(left) - before


# ---- the choice


def test_actors_are_asked_in_turns_beginning_with_the_replicas_own():
    choice = ActorChoice(3, first=4)
    assert [choice.take(now=0.0) for _ in range(6)] == [1, 2, 0, 1, 2, 0]


def test_who_has_the_fewest_requests_out_is_asked():
    choice = ActorChoice(2, first=0)
    assert [choice.take(now=0.0) for _ in range(2)] == [0, 1]
    choice.give_back(1)
    assert [choice.take(now=0.0) for _ in range(2)] == [1, 0]


def test_who_was_lost_is_left_alone_for_a_moment_and_then_asked_again():
    choice = ActorChoice(2, first=0)
    assert choice.lose(0, now=10.0)
    assert [choice.take(now=10.0) for _ in range(2)] == [1, 1]
    assert choice.take(now=10.0 + ASK_AGAIN_S) == 0
    assert not choice.lose(0, now=11.0), "a second loss without an answer between is no news"
    choice.find(0)
    assert choice.lose(0, now=12.0)


def test_nobody_is_asked_while_all_are_lost():
    choice = ActorChoice(2, first=0)
    for actor in range(2):
        choice.lose(actor, now=1.0)
    assert choice.take(now=1.0) is None


@given(st.lists(st.sampled_from(["take", "back"]), max_size=60), st.integers(1, 5))
def test_requests_are_spread_as_evenly_as_they_can_be(steps, num_actors):
    choice, out = ActorChoice(num_actors, first=0), []
    for step in steps:
        if step == "take":
            out.append(choice.take(now=0.0))
            fewest = min(out[:-1].count(actor) for actor in range(num_actors))
            assert out[:-1].count(out[-1]) == fewest
        elif out:
            choice.give_back(out.pop(0))


# ---- the stage


@pytest.mark.parametrize(("num_actors", "num_ahead"), [(1, 1), (1, 4), (2, 3), (3, 8)])
def test_mini_batches_are_those_of_local_stages_in_their_order(num_actors, num_ahead):
    with played([maker() for _ in range(num_actors)]) as actors:
        assert_as_local(all_batches(pipeline_of(actors, num_ahead=num_ahead)))
        assert sum(len(asked) for asked in actors.asked) == NUM_TASKS
        assert actors.num_out == 0


def test_what_a_lost_actor_had_is_asked_of_the_others():
    with played([maker(), maker()], spoil=lose((0, 3))) as actors:
        assert_as_local(all_batches(pipeline_of(actors)))
        assert sum(len(asked) for asked in actors.asked) == NUM_TASKS + 1


def test_the_only_actor_is_waited_for_until_it_is_back():
    with played([maker()], spoil=lose((0, 2), (0, 3), (0, 5))) as actors:
        assert_as_local(all_batches(pipeline_of(actors, hang_limit_s=0.3)))  # less than it is away for


def test_a_run_ends_with_numbers_when_nobody_comes_back(monkeypatch):
    monkeypatch.setattr(asking, "RETURN_S", 0.6)
    with (
        played(
            [maker(), maker()], spoil=lose(*((actor, number) for actor in range(2) for number in range(99)))
        ) as actors,
        pytest.raises(StageFailedError, match=r"none of 2 sampling actors has come back for 0\.6 s") as caught,
    ):
        all_batches(pipeline_of(actors))
    assert caught.value.details["stage"] == "remote"


def test_a_failure_of_a_stage_elsewhere_names_the_actor_and_that_stage():
    def burst(request: BatchRequest) -> PackedBatch:
        raise StageFailedError("stage 'sample' failed on it", stage="sample", error="KeyError", traceback="")

    with (
        played([burst]) as actors,
        pytest.raises(StageFailedError, match=r"^sampling actor 0 \(pid 1 on here\): stage 'sample' failed") as caught,
    ):
        all_batches(pipeline_of(actors))
    assert (caught.value.details["stage"], caught.value.details["error"]) == ("sample", "KeyError")


def test_an_actor_that_hangs_is_named_within_the_limit_and_restarted():
    release = threading.Event()

    def hang(actor: int, number: int) -> None:
        if (actor, number) == (1, 3):
            assert release.wait(30)

    with played([maker(), maker()], spoil=hang) as actors:
        try:
            with pytest.raises(StageFailedError, match=r"waiting for sampling actor 1 \(pid 1 on here\)") as caught:
                all_batches(pipeline_of(actors, hang_limit_s=0.5))
            assert caught.value.details["error"] == "hang"
            assert str(caught.value).endswith("it stands at\nthe stack of 1")
            assert actors.restarted == [1]
        finally:
            release.set()


@pytest.mark.parametrize(("max_items", "num_ahead", "most"), [(2, 8, 2), (8, 3, 3), (1, 4, 1)])
def test_no_more_are_out_than_the_queue_has_places_and_the_plan_allows(max_items, num_ahead, most):
    with played([maker() for _ in range(4)]) as actors:
        pipeline = pipeline_of(actors, num_ahead=num_ahead, max_items=max_items)
        with pipeline.run(ORDER.tasks(0, NUM_TASKS)) as batches:
            next(batches)
            queue = pipeline.queues["remote"]
            while queue.counters().depth + queue.counters().in_flight < max_items:
                threading.Event().wait(0.001)
            threading.Event().wait(0.05)
            counters = queue.counters()
            assert counters.depth + counters.in_flight == max_items
        assert 0 < actors.most_out <= most


def test_bytes_bound_what_is_under_way_and_what_has_come_together():
    make = local()
    sizes = [make(task).nbytes for task in ORDER.tasks(0, NUM_TASKS)]
    size, fitting = max(sizes), 2 * max(sizes) // min(sizes)
    with played([maker() for _ in range(4)]) as actors:
        pipeline = pipeline_of(actors, num_ahead=8, max_items=8, max_bytes=2 * size)
        with pipeline.run(ORDER.tasks(0, NUM_TASKS)) as batches:
            for _ in batches:
                counters = pipeline.queues["remote"].counters()
                assert counters.depth + counters.in_flight <= fitting < 8
        assert pipeline.queues["remote"].counters().high_water_bytes <= 2 * size


def test_a_reference_goes_once_its_answer_is_taken():
    references = []

    class Watched(PlayedActors):
        def ask(self, actor: int, request: BatchRequest) -> Any:
            asked = super().ask(actor, request)
            references.append(weakref.ref(asked))
            return asked

    actors = Watched([maker()])
    try:
        asker = Asker(actors, order=ORDER, rank=0, reading="gathered", in_place=None, hang_limit_s=9.0)
        batch = asker.batch(BatchTask(epoch=1, batch=0), tell=lambda whom: None)
        gc.collect()
        assert len(batch.seeds) == 32
        assert [reference() for reference in references] == [None]
    finally:
        actors.close()


def test_leaving_early_waits_for_no_answer():
    release = threading.Event()

    def hang(actor: int, number: int) -> None:
        if number > 2:
            assert release.wait(30)

    with played([maker()], spoil=hang) as actors:
        try:
            with pipeline_of(actors).run(ORDER.tasks(0, NUM_TASKS)) as batches:
                next(batches)
            assert actors.restarted == [], "it was not silent for long"
        finally:
            release.set()


def test_shares_go_along_with_each_request():
    order = SeedOrder(ORDER.train_nodes, 32, seed=5, world_size=2, shares=lambda step: (step + 1, 3))
    with played([maker()]) as actors:
        asker = Asker(actors, order=order, rank=1, reading="gathered", in_place=None, hang_limit_s=9.0)
        asker.batch(BatchTask(epoch=1, batch=2), tell=lambda whom: None)
        assert actors.asked == [
            [BatchRequest(task=BatchTask(epoch=1, batch=2), rank=1, shares=(3, 3), reading="gathered")]
        ]


def test_a_lost_actor_is_told_of_once(caplog):
    with played([maker(), maker()], spoil=lose((0, 2))) as actors, caplog.at_level("WARNING"):
        all_batches(pipeline_of(actors))
    told = [record.message for record in caplog.records if "is lost" in record.message]
    assert told == ["sampling actor 0 (pid 1 on here) is lost, others are asked in its place: it was killed"]
