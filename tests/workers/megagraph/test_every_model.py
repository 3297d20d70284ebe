"""Every model goes the whole way of a job: described, probed, planned and trained, on nodes and on whole graphs."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from planner.plan import MegaGraphPlan
from planner.planner import make_plan, probes_for
from tests.planner.made_up import cluster
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import ModelInvalidError
from workers.model_specs.by_name import TransformerSpec
from workers.model_specs.custom import CustomSpec
from workers.model_specs.transformers import (
    ExphormerSpec,
    GraphGPSSpec,
    GraphormerSpec,
    GTSpec,
    NAGphormerSpec,
    SGFormerSpec,
)
from workers.models.layers import Features, Head
from workers.probe.describe import describe_job, profile_key
from workers.probe.measure import run_probe
from workers.runtime import run_rank
from workers.spec import DatasetSpec, TrainingSpec, TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

SIZES = {"hidden_size": 8, "num_layers": 1}
SURE = {**SIZES, "dropout": 0.0, "input_dropout": 0.0}


class Own(nn.Module):
    """A user's own model, which mixes no rows."""

    def __init__(self, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.features = Features(num_features, 8, dropout=0.0)
        self.head = Head(8, num_classes, pooling="none")


OF_NODES = (
    GraphormerSpec(**SIZES, edge_types=1),
    GraphormerSpec(**SIZES, index="near_pairs", attention_dropout=0.3),
    GTSpec(**SIZES, laplacian_size=2),
    GraphGPSSpec(**SIZES, walk_length=3, laplacian_size=2),
    ExphormerSpec(**SIZES, laplacian_size=2),
    SGFormerSpec(**SIZES),
    NAGphormerSpec(**SIZES),
    CustomSpec(module=f"{__name__}:Own", units=("features", "head"), hidden_size=8),
)
OF_GRAPHS = (
    GraphormerSpec(**SURE),
    GraphGPSSpec(**SURE, pooling="sum", message_passing="gine"),
    ExphormerSpec(**SURE, norm="layer"),
    GTSpec(**SURE, laplacian_size=1),
)


def job(
    spec: TransformerSpec, data: DatasetSpec, *, folder: Path, epochs: int = 2
) -> tuple[MegaGraphPlan, list[Report]]:
    """Spec to exported model in this process."""
    job_spec = TrainSpec(
        kind="megagraph",
        dataset=data,
        model=spec,
        training=TrainingSpec(epochs=epochs, batch_size=8, eval_every_epochs=epochs, learning_rate=0.02),
    )
    paths = DataPaths(root=None, cache=folder / "cache")
    dataset = load_dataset(data, paths=paths)
    shape = describe_job(job_spec, dataset)
    key = profile_key(shape, cluster=cluster(), num_ranks=1)
    request = probes_for(shape, key=key, cluster=cluster()).model_copy(update={"budget_s": 0.05, "threads": (1,)})
    profile = run_probe(request, spec=job_spec, dataset=dataset, rank=0, world_size=1, group=None)
    plan = make_plan(shape, cluster=cluster(), profile=profile, num_ranks=1)
    assert isinstance(plan, MegaGraphPlan)
    reports: list[Report] = []
    run_rank(
        RankRun(
            spec=job_spec,
            plan=plan,
            rank=0,
            world_size=1,
            device=torch.device("cpu"),
            data=paths,
            job_dir=Folder(folder / "job"),
            report=reports.append,
        )
    )
    return plan, reports


@pytest.mark.parametrize("spec", OF_NODES, ids=lambda spec: spec.name)
def test_a_job_predicts_nodes(spec: TransformerSpec, tmp_path: Path) -> None:
    plan, reports = job(spec, DatasetSpec(name="karate"), folder=tmp_path)
    assert plan.stages[0].units == spec.units
    assert np.isfinite(reports[-1].values["loss"])
    assert 0 <= reports[-1].values["test_accuracy"] <= 1
    assert (tmp_path / "job" / "export" / "model.safetensors").is_file()


@pytest.mark.parametrize("spec", OF_GRAPHS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_job_predicts_whole_graphs(spec: TransformerSpec, task: str, tmp_path: Path) -> None:
    _, reports = job(spec, own_graphs(tmp_path / "own", task=task), folder=tmp_path, epochs=30)
    losses = [report.values["loss"] for report in reports if "loss" in report.values]
    assert losses[-1] < losses[0]
    assert ("test_accuracy" if task == "classes" else "test_mae") in reports[-1].values


def own_graphs(folder: Path, *, task: str) -> DatasetSpec:
    """20 rings and paths of 4 to 8 nodes: which of the two it is, or the share of its edges, is to be told."""
    folder.mkdir()
    graphs, nodes, edges = ["id,label"], ["id,graph,f0,f1"], ["source,target"]
    for graph in range(20):
        size, is_ring = 4 + graph % 5, graph % 2
        label = f"{is_ring}" if task == "classes" else f"{is_ring + 0.5 + size / 10}"
        graphs.append(f"g{graph},{label}")
        nodes += [f"g{graph}n{node},g{graph},{int(node in (0, size - 1))},1" for node in range(size)]
        edges += [f"g{graph}n{node},g{graph}n{(node + 1) % size}" for node in range(size - 1 + is_ring)]
    for name, lines in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return DatasetSpec(path=str(folder))


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"pooling": "mean"}, "pooling 'mean' does not fit karate"), ({"edge_types": 3}, "edge_types 3 does not fit")],
)
def test_a_model_that_does_not_fit_the_data_is_refused_before_anything_runs(
    changes: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelInvalidError, match=said):
        job(GraphormerSpec(**SIZES, **changes), DatasetSpec(name="karate"), folder=tmp_path)


def test_graphs_are_pooled_unless_the_model_says_how(tmp_path: Path) -> None:
    data = own_graphs(tmp_path / "own", task="classes")
    with pytest.raises(ModelInvalidError, match="choose mean or sum"):
        job(GraphormerSpec(**SIZES, pooling="none"), data, folder=tmp_path)
