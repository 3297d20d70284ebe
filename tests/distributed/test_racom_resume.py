"""A run of replicas that step by themselves is stopped and goes on, also with fewer of them."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from planner.errors import PlanInvalidError
from planner.plan import MQGNNPlan, QueueBudget
from planner.sync import SyncRule
from tests.kit.gloo_pool import GlooPool
from workers.data.datasets import load_dataset
from workers.data.graph import TRAIN
from workers.data.paths import DataPaths
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

RULE = SyncRule(name="racom", staleness=3, drift=0.5, first_period=3, base_period=3)
STEPS_PER_EPOCH, EPOCHS, SAVED_AT = 5, 6, 15


class StopError(Exception):
    """Stands for whatever ends a run in the middle."""


def make_run(
    rank: int, world_size: int, folder: str, report, *, planned: SyncRule = RULE, asked: SyncRule = RULE
) -> RankRun:
    return RankRun(
        spec=TrainSpec(
            kind="mqgnn",
            dataset=DatasetSpec(name="sbm"),
            model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 3)),
            training=TrainingSpec(
                epochs=EPOCHS,
                batch_size=128,
                learning_rate=0.003,
                eval_every_epochs=6,
                checkpoint_every_epochs=3,
                sync=asked,
            ),
        ),
        plan=MQGNNPlan(
            world_size=world_size,
            batch_size=128,
            fanouts=(4, 3),
            queues=tuple(QueueBudget(name=name, max_items=2, max_bytes=2**22) for name in ("sample", "prepare")),
            sync=planned,
            report_every_steps=2,
        ),
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        data=DataPaths(root=None, cache=Path(folder) / "cache"),
        job_dir=Folder(Path(folder) / "job"),
        report=report,
    )


def run(rank: int, world_size: int, folder: str, stop_after: int | None) -> tuple[list[Report], dict[int, list[int]]]:
    """The reports of a run, and the seeds that this replica took in each step."""
    reports: list[Report] = []
    taken: dict[int, list[int]] = {}
    compute = ReplicaStep.compute

    def watched(replica, batch):
        step = (batch.task.epoch - 1) * STEPS_PER_EPOCH + batch.task.batch + 1
        taken[step] = batch.seeds.tolist()
        return compute(replica, batch)

    def report(entry: Report) -> None:
        reports.append(entry)
        dist.barrier()  # as under Ray Train: a replica that reports more or less than another would hang here
        if stop_after is not None and entry.step >= stop_after:
            raise StopError

    ReplicaStep.compute = watched
    try:
        train(make_run(rank, world_size, folder, report))
    except StopError:
        pass
    finally:
        ReplicaStep.compute = compute
    return reports, taken


@pytest.fixture(scope="module")
def pool():
    with GlooPool(3) as pool:
        yield pool


@pytest.mark.parametrize("resumed_with", [3, 2])
def test_versions_and_clocks_go_on_and_every_seed_is_taken_once(pool, tmp_path, resumed_with):
    before = pool.run(run, str(tmp_path), 18, world_size=3)
    after = pool.run(run, str(tmp_path), None, world_size=resumed_with)
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
