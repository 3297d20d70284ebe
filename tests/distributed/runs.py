"""Whole runs through ``run_rank`` on the ranks of a pool, with everything they reported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from planner.plan import Partition
from tests.distributed.equality import Case, Width, plan_of
from tests.distributed.odd_graphs import odd_set
from workers.data.partition import NATURAL
from workers.data.paths import DataPaths
from workers.runtime import run_rank
from workers.spec import DatasetSpec, GraphormerSpec, TrainingSpec, TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

MODEL = GraphormerSpec(num_layers=1, hidden_size=8, num_heads=2, max_distance=2, dropout=0.2, input_dropout=0.2)


@dataclass(frozen=True)
class RunOutcome:
    """What one rank returned and reported."""

    result: dict[str, float]
    reports: list[Report]

    def series(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of every report that names ``name``."""
        return [(report.step, report.values[name]) for report in self.reports if name in report.values]


class StoppedError(Exception):
    """Planted: the rank ends in the middle of its run."""


def run_train(
    rank: int,
    world_size: int,
    folder: Path,
    *,
    dataset: str = "karate",
    cp: int = 1,
    dp: int = 1,
    exchange: str = "ring",
    ulysses: int = 1,
    partition: Partition = NATURAL,
    stages: tuple[Width, ...] = (),
    stage_schedule: str = "1f1b",
    sharded: tuple[str, ...] = (),
    shard_degree: int | None = None,
    num_micro_batches: int = 1,
    report_every_steps: int = 1,
    stop_after_step: int | None = None,
    max_silence_s: float = 20.0,
    **training: Any,
) -> RunOutcome:
    """Train ``dataset`` with ``cp`` x ``dp`` ranks, or ``stages``, into ``folder``; fail after ``stop_after_step``."""
    case = Case(
        odd_set(),
        cp=cp,
        dp=dp,
        exchange=exchange,
        ulysses=ulysses,
        partition=partition,
        stages=stages,
        schedule=stage_schedule,
        sharded=sharded,
        shard_degree=shard_degree,
        num_micro_batches=num_micro_batches,
        spec=MODEL,
    )
    spec = TrainSpec(
        kind="megagraph",
        dataset=DatasetSpec(name=dataset),
        model=MODEL,
        training=TrainingSpec(**{"dtype": "float64", "learning_rate": 0.01, **training}),
    )
    reports: list[Report] = []

    def report(said: Report) -> None:
        reports.append(said)
        if said.step == stop_after_step:
            raise StoppedError(f"planted after step {said.step}")

    result = run_rank(
        RankRun(
            spec=spec,
            plan=plan_of(case).model_copy(update={"report_every_steps": report_every_steps}),
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data=DataPaths(root=None, cache=folder.parent / "cache"),
            job_dir=Folder(folder),
            report=report,
            max_silence_s=max_silence_s,
        )
    )
    return RunOutcome(result=result, reports=reports)
