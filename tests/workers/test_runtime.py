"""The door to both runtimes."""

from pathlib import Path

import pytest
import torch

from planner.plan import Action, MegaGraphPlan, MQGNNPlan, Stage
from tests.on_ray.jobs import sampled, transformer
from workers.data.paths import DataPaths
from workers.runtime import run_rank
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

STAGE = Stage(units=("embedding", "block.0", "block.1", "head"), ranks=(0,), dp_degree=1, cp_degree=1, exchange="none")
STEP = (Action(0, "F", 0), Action(0, "B", 0))
KINDS = {
    "megagraph": (transformer(epochs=2), MegaGraphPlan(world_size=1, stages=(STAGE,), actions=(STEP,))),
    "mqgnn": (sampled(epochs=2), MQGNNPlan(world_size=1, batch_size=8, fanouts=(5, 5), pipelined=False)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_the_plan_decides_who_trains(kind: str, tmp_path: Path) -> None:
    document, plan = KINDS[kind]
    reports: list[Report] = []
    last = run_rank(
        RankRun(
            spec=TrainSpec.model_validate({name: value for name, value in document.items() if name != "name"}),
            plan=plan,
            rank=0,
            world_size=1,
            device=torch.device("cpu"),
            data=DataPaths(root=None, cache=tmp_path / "cache"),
            job_dir=Folder(tmp_path / "job"),
            report=reports.append,
        )
    )
    assert (reports[0].step, reports[-1].epoch) == (1, 2)
    assert last["done"] == 1
    assert {"test_accuracy", "val_accuracy", "best_epoch"} <= set(last)
    assert (tmp_path / "job" / "export" / "model.safetensors").exists()
