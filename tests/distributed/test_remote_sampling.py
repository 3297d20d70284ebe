"""Replicas whose mini-batches are made elsewhere, by actors that these tests play in each rank's own process."""

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from planner.plan import QueueBudget
from planner.sampling import SamplingRule
from planner.sync import SyncRule
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.remote.played_actors import lose, played
from workers.data.datasets import load_dataset
from workers.data.graph import TRAIN
from workers.data.paths import DataPaths
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.remote.batch_maker import BatchMaker
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.run import RankRun, Report

REMOTE = SamplingRule(placement="remote", num_actors=2)
BATCH, STEPS_PER_EPOCH, EPOCHS = 80, 8, 4  # sbm has 600 training nodes
RACOM = SyncRule(name="racom", staleness=3, drift=0.5, first_period=3, base_period=3)
QUEUES = (QueueBudget(name="remote", max_items=4, max_bytes=2**24),)


@dataclass
class Course:
    """What a rank reported, the seeds that it took by step, and how many shares its requests named."""

    losses: dict[int, float] = field(default_factory=dict)
    taken: dict[int, list[int]] = field(default_factory=dict)
    num_shares: set[int] = field(default_factory=set)


def make_run(rank: int, world_size: int, folder: Path, *, rule: SamplingRule, sync: SyncRule, report) -> RankRun:
    spec = TrainSpec(
        kind="mqgnn",
        dataset=DatasetSpec(name="sbm"),
        model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 4), dropout=0.5),
        training=TrainingSpec(
            epochs=EPOCHS, batch_size=BATCH, eval_every_epochs=4, checkpoint_every_epochs=4, sync=sync, sampling=rule
        ),
    )
    data = DataPaths(root=None, cache=folder / "cache")
    remote = {"sampling": rule, "queues": QUEUES, "num_sampling_workers": 3} if rule.is_remote else {}
    places = {"rank": rank, "world_size": world_size, "report": report}
    return sampled_run(spec, job_dir=folder / rule.placement, data=data, **places, **remote)


def run_steps(rank: int, world_size: int, folder: Path, rule: SamplingRule, sync: SyncRule) -> Course:
    course, compute = Course(), ReplicaStep.compute

    def watched(replica, batch):
        step = (batch.task.epoch - 1) * STEPS_PER_EPOCH + batch.task.batch + 1
        course.taken[step] = batch.seeds.tolist()
        return compute(replica, batch)

    def report(said: Report) -> None:
        course.losses[said.step] = said.values["loss"]

    run = make_run(rank, world_size, folder, rule=rule, sync=sync, report=report)
    makers = [BatchMaker(run.spec, plan=run.plan, paths=run.data) for _ in range(2)] if rule.is_remote else []
    spoil = lose((rank, 3))
    ReplicaStep.compute = watched
    try:
        with played([maker.make for maker in makers], spoil=spoil) if makers else nullcontext() as actors:
            train(replace(run, samplers=actors))
    finally:
        ReplicaStep.compute = compute
    if actors is not None:
        course.num_shares = {len(request.shares) for asked in actors.asked for request in asked}
    return course


def test_replicas_train_alike_wherever_their_mini_batches_are_made(pool, tmp_path):
    local = pool.run(run_steps, tmp_path, SamplingRule(), SyncRule(), world_size=2)
    remote = pool.run(run_steps, tmp_path, REMOTE, SyncRule(), world_size=2)
    for here, there in zip(local, remote, strict=True):
        assert there.losses == here.losses
        assert there.taken == here.taken
        assert len(there.losses) == EPOCHS * STEPS_PER_EPOCH


@pytest.mark.parametrize("sync", [SyncRule(), RACOM], ids=["ddp", "racom"])
def test_every_seed_is_taken_once_in_each_epoch_whoever_makes_its_mini_batch(pool, tmp_path, sync):
    courses = pool.run(run_steps, tmp_path, REMOTE, sync, world_size=2)
    paths = DataPaths(root=None, cache=tmp_path / "cache")
    graph = load_dataset(DatasetSpec(name="sbm"), paths=paths).graphs[0]
    train_nodes = Counter(np.flatnonzero(graph.split == TRAIN).tolist())
    for epoch in range(EPOCHS):
        steps = range(epoch * STEPS_PER_EPOCH + 1, (epoch + 1) * STEPS_PER_EPOCH + 1)
        taken = Counter(seed for course in courses for step in steps for seed in course.taken.get(step, []))
        assert taken == train_nodes
    assert all(course.num_shares == {2} for course in courses)
