"""A run that is killed in the middle of an epoch goes on from its files as if it had never stopped.

Cases from the field by their numbers in the collection (G23 … G29). A kill is SIGKILL, and who goes on are other
processes, which have nothing but the files; to start one takes seconds, so where it is not the kill that matters, an
exception out of a report takes its place, and all that goes on is built anew.
"""

import os
import signal
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from planner.sync import SyncRule
from tests.distributed.test_mqgnn_replicas import line
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import Settings, train_by_hand
from workers.data.datasets import load_dataset
from workers.data.graph import TRAIN
from workers.data.paths import DataPaths
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

# sbm has 600 training nodes, so an epoch has 8 steps, and step 50 is the second of epoch 7
BATCH, STEPS_PER_EPOCH, EPOCHS = 80, 8, 13
SAVED_EVERY, STOPPED_AFTER, NUM_STEPS = 50, 58, 104
RACOM = SyncRule(name="racom", staleness=3, drift=0.5, first_period=3, base_period=3)
LOCAL_SGD = SyncRule(name="local_sgd", first_period=4)


@dataclass(frozen=True)
class Course:
    """What a rank reported of its steps, and the seeds that it took in each."""

    reports: list[Report]
    taken: dict[int, list[int]]


class StopError(Exception):
    """Ends a run in the middle."""


def run_steps(rank: int, world_size: int, folder: Path, sync: SyncRule, stop: str = "") -> Course:
    """Train to the end, or to a step between checkpoints, where this process kills itself or the run is left."""
    course = Course([], {})
    compute = ReplicaStep.compute

    def watched(replica, batch):
        step = (batch.task.epoch - 1) * STEPS_PER_EPOCH + batch.task.batch + 1
        assert step not in course.taken
        course.taken[step] = batch.seeds.tolist()
        return compute(replica, batch)

    def report(said: Report) -> None:
        course.reports.append(said)
        if world_size > 1:
            dist.barrier()
        if stop and said.step == STOPPED_AFTER:
            torch.save(course, folder / f"seen-{rank}.pt")
            if stop == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise StopError

    ReplicaStep.compute = watched
    try:
        train(make_run(rank, world_size, folder, sync, report))
    except StopError:
        pass
    finally:
        ReplicaStep.compute = compute
    return course


def make_run(rank: int, world_size: int, folder: Path, sync: SyncRule, report) -> RankRun:
    spec = TrainSpec(
        kind="mqgnn",
        dataset=DatasetSpec(name="sbm"),
        model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 4), dropout=0.5),
        training=TrainingSpec(
            epochs=EPOCHS,
            batch_size=BATCH,
            learning_rate=0.003,
            eval_every_epochs=6,
            checkpoint_every_epochs=1000,
            checkpoint_every_steps=SAVED_EVERY,
            schedule={"name": "cosine", "warmup_epochs": 2},
            sync=sync,
        ),
    )
    data = DataPaths(root=None, cache=folder.parent / "cache")
    return sampled_run(spec, job_dir=folder, data=data, rank=rank, world_size=world_size, report=report)


def stopped_and_resumed(
    pool: GlooPool, folder: Path, sync: SyncRule, *, before: int, after: int, stop: str = "leave"
) -> tuple[list[Course], list[Course]]:
    """What ``before`` ranks saw until they were stopped, and what ``after`` others saw that went on."""
    folder.mkdir()
    with pytest.raises(RanksFailedError, match="exit code -9") if stop == "kill" else nullcontext():
        pool.run(run_steps, folder, sync, stop, world_size=before)
    seen = [torch.load(folder / f"seen-{rank}.pt", weights_only=False) for rank in range(before)]
    return seen, pool.run(run_steps, folder, sync, world_size=after)


def check_every_seed_once(before: list[Course], after: list[Course], folder: Path) -> None:
    """No seed is lost or taken twice in any epoch, that of the kill among them."""
    paths = DataPaths(root=None, cache=folder.parent / "cache")
    graph = load_dataset(DatasetSpec(name="sbm"), paths=paths).graphs[0]
    train_nodes = Counter(np.flatnonzero(graph.split == TRAIN).tolist())
    for epoch in range(EPOCHS):
        steps = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        courses = {step: after if step > SAVED_EVERY else before for step in steps}
        assert Counter(seed for step in steps for each in courses[step] for seed in each.taken[step]) == train_nodes


def losses(course: Course) -> dict[int, float]:
    return {report.step: report.values["loss"] for report in course.reports}


@pytest.mark.parametrize(
    ("sync", "size", "stop"),
    [(SyncRule(), 1, "kill"), (SyncRule(), 2, "leave"), (LOCAL_SGD, 2, "leave")],
    ids=["alone", "ddp", "local_sgd"],
)
def test_g29_50_steps_a_kill_and_the_rest_equal_all_steps_at_once(pool, tmp_path, sync, size, stop):
    (tmp_path / "whole").mkdir()
    whole = pool.run(run_steps, tmp_path / "whole", sync, world_size=size)
    before, after = stopped_and_resumed(pool, tmp_path / "parts", sync, before=size, after=size, stop=stop)
    for rank in range(size):
        expected = losses(whole[rank])
        assert list(expected) == list(range(1, NUM_STEPS + 1))
        found = {**losses(before[rank]), **losses(after[rank])}
        assert list(losses(after[rank])) == list(range(SAVED_EVERY + 1, NUM_STEPS + 1))
        assert found == pytest.approx(expected, rel=0, abs=1e-6)
        assert {**before[rank].taken, **after[rank].taken} == whole[rank].taken
    check_every_seed_once(before, after, tmp_path / "parts")
    ours, exact = (load_exported(Folder(tmp_path / name / "export")).state_dict() for name in ("parts", "whole"))
    assert ours.keys() == exact.keys()
    for name, tensor in exact.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_g28_racom_goes_on_in_mid_epoch_with_fewer_or_more_replicas_and_takes_every_seed_once(pool, tmp_path, after):
    folder = tmp_path / "job"
    seen, resumed = stopped_and_resumed(pool, folder, RACOM, before=2, after=after)
    check_every_seed_once(seen, resumed, folder)
    saved = next(report for report in seen[0].reports if report.step == SAVED_EVERY)
    assert saved.checkpoint
    assert saved.values["sync_version"] >= 10
    for course in resumed:
        assert [report.step for report in course.reports] == list(range(SAVED_EVERY + 1, NUM_STEPS + 1))
        assert course.reports[-1].values["done"] == 1
        if after > 1:
            versions = [report.values["sync_version"] for report in course.reports]
            assert versions == sorted(versions)
            assert saved.values["sync_version"] <= versions[0] < versions[-1]


def test_g27_a_resumed_run_counts_its_epochs_on(pool, tmp_path):
    before, after = stopped_and_resumed(pool, tmp_path / "job", SyncRule(), before=1, after=2)
    epochs = {report.step: report.epoch for report in (*before[0].reports[:SAVED_EVERY], *after[0].reports)}
    assert epochs == {step: (step - 1) // STEPS_PER_EPOCH + 1 for step in range(1, NUM_STEPS + 1)}


# As the case has it: 4097 seeds, 4 ranks, mini-batches of 1024
UNEVEN = clustered_graph(6868, degree=4)
UNEVEN_SEEDS = np.flatnonzero(UNEVEN.split == TRAIN)


def train_uneven(rank: int, world_size: int) -> tuple[list[list[int]], list[float], dict[str, torch.Tensor]]:
    taken: list[list[int]] = []
    settings = Settings(fanouts=(3, 3), batch_size=1024, epochs=1)
    weights, seen = train_by_hand(
        UNEVEN, settings, axis=line(rank, world_size), watch=lambda _, batch: taken.append(batch.seeds.tolist())
    )
    return taken, seen, weights


def test_g23_a_last_batch_of_one_seed_for_four_ranks_ends_and_the_loss_is_weighted_by_seeds(pool):
    assert len(UNEVEN_SEEDS) == 4097
    alone, *others = train_uneven(0, 1), *pool.run(train_uneven, world_size=4)
    assert sorted(len(taken[-1]) for taken, _, _ in others) == [0, 0, 0, 1]
    for _, seen, weights in others:
        assert seen == pytest.approx(alone[1], rel=0, abs=1e-10)
        for name, tensor in alone[2].items():
            torch.testing.assert_close(weights[name], tensor, rtol=0, atol=1e-10)


def test_g24_ranks_take_different_seeds_and_together_all_of_them_without_padding(pool):
    courses = pool.run(train_uneven, world_size=4)
    of_ranks = [[seed for step in taken for seed in step] for taken, _, _ in courses]
    assert Counter(seed for taken in of_ranks for seed in taken) == Counter(UNEVEN_SEEDS.tolist())
    assert max(map(len, of_ranks)) - min(map(len, of_ranks)) <= 5
