"""The door to both runtimes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from planner.errors import PlanInvalidError
from planner.plan import Action, MegaGraphPlan, MQGNNPlan, Plan, Stage
from tests.on_ray.jobs import sampled, transformer
from workers.data.paths import DataPaths
from workers.runtime import run_rank
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

UNITS = ("features", "degree", "distance", "block.0", "block.1", "head")
STAGE = Stage(units=UNITS, ranks=(0,), dp_degree=1, cp_degree=1, exchange="none")
STEP = (Action(0, "F", 0), Action(0, "B", 0))
KINDS = {
    "megagraph": (transformer(epochs=2), MegaGraphPlan(world_size=1, stages=(STAGE,), actions=(STEP,))),
    "mqgnn": (sampled(epochs=2), MQGNNPlan(world_size=1, batch_size=8, fanouts=(5, 5), pipelined=False)),
}


def make_run(kind: str, plan: Plan, *, folder: Path, report: Callable[[Report], None]) -> RankRun:
    document, _ = KINDS[kind]
    return RankRun(
        spec=TrainSpec.model_validate({name: value for name, value in document.items() if name != "name"}),
        plan=plan,
        rank=0,
        world_size=1,
        device=torch.device("cpu"),
        data=DataPaths(root=None, cache=folder / "cache"),
        job_dir=Folder(folder / "job"),
        report=report,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_the_plan_decides_who_trains(kind: str, tmp_path: Path) -> None:
    reports: list[Report] = []
    last = run_rank(make_run(kind, KINDS[kind][1], folder=tmp_path, report=reports.append))
    assert (reports[0].step, reports[-1].epoch) == (1, 2)
    assert last["done"] == 1
    assert {"test_accuracy", "val_accuracy", "best_epoch"} <= set(last)
    assert (tmp_path / "job" / "export" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("megagraph", KINDS["mqgnn"][1]),
        ("mqgnn", KINDS["megagraph"][1]),
        ("mqgnn", KINDS["mqgnn"][1].model_copy(update={"world_size": 2})),
    ],
)
def test_a_plan_for_another_run_is_refused_before_anything_is_read(kind: str, plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(
        PlanInvalidError, match=f"the plan is of kind .* the run is of kind '{kind}' with 1; plan again"
    ):
        run_rank(make_run(kind, plan, folder=tmp_path, report=lambda report: None))
    assert not any(tmp_path.iterdir())


def test_a_transformer_plan_that_cannot_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    plan = KINDS["megagraph"][1].model_copy(update={"sharded": ("tail",)})
    with pytest.raises(PlanInvalidError, match="sharded names units"):
        run_rank(make_run("megagraph", plan, folder=tmp_path, report=lambda report: None))
    assert not any(tmp_path.iterdir())
