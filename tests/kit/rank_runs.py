"""What a rank of a sampled GNN is given, on a CPU: the plan that follows from the spec, and where things lie."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from planner.plan import MQGNNPlan, QueueBudget
from workers.data.paths import DataPaths
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report


def queue_budgets(*, max_items: int = 2, max_bytes: int = 2**22) -> tuple[QueueBudget, ...]:
    """Of the stages on a CPU, all alike."""
    return tuple(QueueBudget(name=name, max_items=max_items, max_bytes=max_bytes) for name in ("sample", "prepare"))


def sampled_run(
    spec: TrainSpec,
    *,
    job_dir: str | Path,
    data: DataPaths,
    rank: int = 0,
    world_size: int = 1,
    report: Callable[[Report], None] = lambda report: None,
    model_from: str | Path | None = None,
    **plan: Any,
) -> RankRun:
    """``rank`` of a run of ``spec``; ``plan`` are fields of the plan in the place of those that follow from it."""
    follow = {
        "world_size": world_size,
        "batch_size": spec.training.batch_size,
        "fanouts": spec.model.fanouts,
        "queues": queue_budgets(),
        "sync": spec.training.sync,
    }
    return RankRun(
        spec=spec,
        plan=MQGNNPlan(**follow | plan),
        rank=rank,
        world_size=world_size,
        device=torch.device("cpu"),
        data=data,
        job_dir=Folder(job_dir),
        report=report,
        model_from=None if model_from is None else Folder(model_from),
    )
