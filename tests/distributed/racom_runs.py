"""Whole runs of replicas that step by themselves, stopped in the middle or not, with the seeds that they took."""

from pathlib import Path

import torch.distributed as dist

from planner.sync import SyncRule
from tests.kit.rank_runs import sampled_run
from workers.data.paths import DataPaths
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.run import RankRun, Report

RULE = SyncRule(name="racom", staleness=3, drift=0.5, first_period=3, base_period=3)
STEPS_PER_EPOCH, EPOCHS, SAVED_AT = 5, 6, 15


class StopError(Exception):
    """Stands for whatever ends a run in the middle."""


def make_run(
    rank: int, world_size: int, folder: str, report, *, planned: SyncRule = RULE, asked: SyncRule = RULE
) -> RankRun:
    spec = TrainSpec(
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
    )
    return sampled_run(
        spec,
        job_dir=Path(folder) / "job",
        data=DataPaths(root=None, cache=Path(folder) / "cache"),
        rank=rank,
        world_size=world_size,
        report=report,
        sync=planned,
        report_every_steps=2,
    )


def run_whole(
    rank: int, world_size: int, folder: str, stop_after: int | None
) -> tuple[list[Report], dict[int, list[int]]]:
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
