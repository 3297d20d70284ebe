"""Replicas that step by themselves: their bounds, what they agree on, and that every seed is taken once."""

import threading
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from planner.errors import PlanInvalidError
from planner.sync import SyncRule
from tests.distributed.racom_runs import EPOCHS, SAVED_AT, STEPS_PER_EPOCH, make_run, run_whole
from tests.distributed.test_mqgnn_replicas import line
from tests.kit.gloo_pool import GlooPool
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import Settings, train_by_hand
from workers.data.datasets import load_dataset
from workers.data.graph import TRAIN
from workers.data.paths import DataPaths
from workers.mqgnn.racom.exchange import Racom
from workers.mqgnn.train import train
from workers.spec import DatasetSpec

GRAPH = clustered_graph(300, degree=10)
RULE = SyncRule(name="racom", staleness=4, drift=0.3, first_period=5, base_period=5)
SETTINGS = Settings(epochs=8, learning_rate=0.003, dtype=torch.float32, dropout=0.5, sync=RULE)


@pytest.fixture(scope="module")
def pool():
    with GlooPool(3) as pool:
        yield pool


@dataclass(frozen=True)
class Step:
    """What a replica held after a step."""

    version: int
    weights: Tensor
    reference: Tensor
    figures: dict[str, float]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Course:
    """A replica's whole run."""

    steps: list[Step]
    weights: dict[str, Tensor]
    losses: list[float]
    num_threads: int


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).clone()


def run(rank: int, world_size: int, settings: Settings) -> Course:
    steps: list[Step] = []

    def watch(exchange, batch) -> None:
        assert isinstance(exchange, Racom)
        held = exchange.weights
        steps.append(
            Step(
                version=exchange.version,
                weights=flat(held.parameters),
                reference=flat(held.reference),
                figures=exchange.figures(),
                seeds=tuple(batch.seeds.tolist()),
            )
        )

    weights, losses = train_by_hand(GRAPH, settings, axis=line(rank, world_size), watch=watch)
    return Course(steps, weights, losses, threading.active_count())


def farthest_pair(courses: list[Course], drift: float) -> float:
    """The largest ‖w_i − w_j‖ over 2δ‖r‖ of any two replicas at any steps that hold the same version."""
    largest = 0.0
    for place, one in enumerate(courses):
        for other in courses[place + 1 :]:
            for a in one.steps:
                for b in other.steps:
                    if a.version == b.version:
                        assert torch.equal(a.reference, b.reference), "a version is the same bits everywhere"
                        bound = 2 * drift * float(a.reference.norm())
                        largest = max(largest, float((a.weights - b.weights).norm()) / bound)
    return largest


def train_replica(rank: int, world_size: int, settings: Settings) -> tuple[dict[str, Tensor], list[float]]:
    return train_by_hand(GRAPH, settings, axis=line(rank, world_size))


@pytest.mark.parametrize("bounds", [{"staleness": 0}, {"drift": 0.0}])
def test_no_lead_alone_and_no_drift_alone_equal_ddp_bit_for_bit(pool, bounds):
    settings = replace(SETTINGS, epochs=2, sync=RULE.model_copy(update=bounds))
    expected = pool.run(train_replica, replace(settings, sync=SyncRule()), world_size=3)
    found = pool.run(train_replica, settings, world_size=3)
    for (weights, losses), (again, losses_again) in zip(expected, found, strict=True):
        assert losses == losses_again
        assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("drift", [0.3, 0.05])
@pytest.mark.parametrize("push", [False, True])
def test_replicas_of_one_version_are_never_further_apart_than_twice_the_drift(pool, drift, push):
    rule = RULE.model_copy(update={"drift": drift, "push": push})
    courses = pool.run(run, replace(SETTINGS, sync=rule), world_size=3)
    for course in courses:
        for step in course.steps:
            assert float((step.weights - step.reference).norm()) <= drift * float(step.reference.norm()) * (1 + 1e-5)
            assert step.figures["drift_over_bound"] <= 1 + 1e-5
    farthest = farthest_pair(courses, drift)
    assert farthest <= 1 + 1e-5
    assert farthest > 0.05  # they do go different ways, so the bound has something to hold
    assert farthest_pair(courses, drift / 30) > 1  # and a bound that is broken would be seen


def test_all_end_with_the_same_weights_and_learn(pool):
    courses = pool.run(run, replace(SETTINGS, epochs=20, learning_rate=0.01, dropout=0.0), world_size=3)
    first = courses[0].weights
    assert all(torch.equal(first[name], course.weights[name]) for course in courses for name in first)
    assert max(course.losses[-1] for course in courses) < 0.6 * courses[0].losses[0]
    assert courses[0].steps[-1].version >= len(courses[0].steps) // 10  # a period is 5 steps, or less


@pytest.mark.parametrize("slowness", [(), (1, 6)])
def test_every_seed_is_taken_once_an_epoch_and_a_slow_replica_takes_fewer(pool, slowness):
    settings = replace(SETTINGS, epochs=12, pipelined=True, slowness=slowness)
    courses = pool.run(run, settings, world_size=2)
    train_nodes = np.flatnonzero(GRAPH.split == TRAIN)
    steps_per_epoch = len(courses[0].steps) // 12
    for epoch in range(12):
        part = slice(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)
        taken = Counter(seed for course in courses for step in course.steps[part] for seed in step.seeds)
        assert taken == Counter(train_nodes.tolist())
    totals = [sum(len(step.seeds) for step in course.steps) for course in courses]
    if slowness:
        assert totals[1] < 0.7 * totals[0]


def test_nobody_is_further_ahead_than_the_lead(pool):
    settings = replace(SETTINGS, slowness=(1, 6), sync=RULE.model_copy(update={"staleness": 1}))
    courses = pool.run(run, settings, world_size=2)
    assert max(step.figures["clock_lead_max"] for course in courses for step in course.steps) <= 2
    assert max(step.figures["clock_lead"] for course in courses for step in course.steps) <= 1


def test_steps_too_large_to_be_taken_alone_are_taken_by_all_and_equal_ddp(pool):
    """With a drift below any step's length, every step is one of all."""
    exact = replace(SETTINGS, dtype=torch.float64, dropout=0.0, fanouts=(-1, -1), epochs=2)
    tiny = RULE.model_copy(update={"drift": 1e-9, "staleness": 1})
    (expected, _), *_ = pool.run(train_replica, replace(exact, sync=SyncRule()), world_size=2)
    courses = pool.run(run, replace(exact, sync=tiny), world_size=2)
    num_steps = len(courses[0].steps)
    assert [step.version for step in courses[0].steps] == list(range(1, num_steps + 1))
    for name, tensor in expected.items():
        torch.testing.assert_close(courses[0].weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_pushes_arrive_and_are_mixed_in_while_they_are_young(pool):
    rule = RULE.model_copy(update={"first_period": 64, "base_period": 64, "drift": 0.9, "push": True})
    for course in pool.run(run, replace(SETTINGS, sync=rule), world_size=2):
        last = course.steps[-1].figures
        assert last["pushes_mixed"] > 5
        assert 0 <= last["push_age"] <= rule.staleness


def test_local_sgd_agrees_every_period_and_at_the_end(pool):
    settings = replace(SETTINGS, sync=SyncRule(name="local_sgd", first_period=4))
    (one, losses), (other, _) = pool.run(train_replica, settings, world_size=2)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses[-1] < losses[0]


def test_runs_leave_no_thread_behind(pool):
    first, second = (pool.run(run, replace(SETTINGS, epochs=1), world_size=2)[0].num_threads for _ in range(2))
    assert second <= first


@pytest.mark.parametrize("resumed_with", [3, 2])
def test_versions_and_clocks_go_on_and_every_seed_is_taken_once(pool, tmp_path, resumed_with):
    before = pool.run(run_whole, str(tmp_path), 18, world_size=3)
    after = pool.run(run_whole, str(tmp_path), None, world_size=resumed_with)
    saved = next(report for report in before[0][0] if report.step == SAVED_AT)
    assert saved.checkpoint
    assert saved.values["sync_version"] >= 3
    steps = [[report.step for report in reports] for reports, _ in after]
    assert steps == [[16, 18, 20, 22, 24, 26, 28, 30]] * resumed_with
    versions = [report.values["sync_version"] for report in after[0][0]]
    assert versions[0] >= saved.values["sync_version"]
    assert versions == sorted(versions)
    assert versions[-1] > versions[0]
    assert after[0][0][-1].values["done"] == 1
    graph = load_dataset(DatasetSpec(name="sbm"), paths=DataPaths(root=None, cache=tmp_path / "cache")).graphs[0]
    train_nodes = Counter(np.flatnonzero(graph.split == TRAIN).tolist())
    for epoch in range(EPOCHS):
        course = before if (epoch + 1) * STEPS_PER_EPOCH <= SAVED_AT else after
        part = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        assert Counter(seed for _, taken in course for step in part for seed in taken[step]) == train_nodes


def test_a_plan_with_another_rule_is_refused(tmp_path):
    with pytest.raises(PlanInvalidError, match="the plan has replicas go together by name='racom'"):
        train(make_run(0, 1, str(tmp_path), None, asked=SyncRule()))
