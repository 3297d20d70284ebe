"""Modules of one's own as jobs: found by import path, trained, exported, used again; what does not fit is told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.own.modules import WIDTH_IN, WIDTH_OUT, Sized, own_module, pyg_data
from tests.workers.mqgnn.test_graph_sets import own_set
from tests.workers.mqgnn.test_node_table import featureless
from tests.workers.mqgnn.test_train import StopError, exported, last_weights
from workers.data.paths import DataPaths
from workers.errors import ModelInvalidError
from workers.model_specs.custom import CustomGNNSpec
from workers.mqgnn import Trainer, model_runs
from workers.runtime import run_rank
from workers.spec import DatasetSpec, TrainingSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

DATA = pyg_data()
HERE = "tests.workers.mqgnn.own"


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def model(build: str = "modules:own_module", *, fanouts: tuple[int, ...] = (3, 2), **fields: Any) -> CustomGNNSpec:
    return CustomGNNSpec(module=f"{HERE}.{build}", fanouts=fanouts, **fields)


def run_of(
    tmp_path: Path,
    name: str,
    own: CustomGNNSpec,
    *,
    dataset: DatasetSpec | None = None,
    report=lambda report: None,
    used: str | None = None,
    task: str = "train",
    **training: Any,
) -> RankRun:
    """A run into the folder ``name``; of the model that is exported in the folder ``used``."""
    if dataset is None:
        torch.save(DATA, tmp_path / "data.pt")
        dataset = DatasetSpec(path=str(tmp_path / "data.pt"))
    settings = {"epochs": 6, "batch_size": 64, "eval_every_epochs": 3, "checkpoint_every_epochs": 3} | training
    spec = TrainSpec(
        kind="mqgnn", task=task, from_job=used, dataset=dataset, model=own, training=TrainingSpec(**settings)
    )
    return sampled_run(
        spec,
        job_dir=tmp_path / name,
        data=DataPaths(root=None, cache=tmp_path / "cache"),
        report=report,
        model_from=None if used is None else tmp_path / used / "export",
        report_every_steps=100,
    )


OWN = {
    "in place": model(),
    "trimmed": model(arguments={"convolution": "pna"}),
    "padded": model(arguments={"residual": True}),
    "whole": model(arguments={"num_layers": 1}),
    "a matrix": model(arguments={"convolution": "GCNConv"}, takes="adj_t"),
    "batch norm": model(arguments={"norm": True, "dropout": 0.3}, sampler="labor", direction="out"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_module_found_by_its_path_learns_is_exported_and_used_again(tmp_path, name, monkeypatch):
    ways = []
    find = model_runs.Judge.ways
    monkeypatch.setattr(model_runs.Judge, "ways", lambda judge, own: ways.append(find(judge, own)) or ways[-1])
    trained = run_rank(run_of(tmp_path, "job", OWN[name]))
    assert trained["test_accuracy"] > 0.65  # by chance: 0.33
    assert ways[0].form == (name if name in ("in place", "trimmed", "padded", "whole") else "in place")

    plain = load_exported(Folder(tmp_path / "job" / "export"))
    assert type(plain) is Sized
    if OWN[name].takes == "edge_index":
        edge_index = DATA.edge_index.flip(0) if OWN[name].direction == "out" else DATA.edge_index
        with torch.no_grad():
            hit = plain(DATA.x, edge_index).argmax(dim=1) == DATA.y
        assert trained["test_accuracy"] == pytest.approx(float(hit[DATA.test_mask].float().mean()))
    scored = run_rank(run_of(tmp_path, "scored", OWN[name], used="job", task="evaluate"))
    predicted = run_rank(run_of(tmp_path, "predicted", OWN[name], used="job", task="predict"))
    assert scored["test_accuracy"] == predicted["test_accuracy"] == trained["test_accuracy"]
    assert (tmp_path / "predicted" / "predictions" / "part-00000.parquet").exists()


def test_a_job_trains_as_the_trainer_does_in_a_script(tmp_path):
    own = model(arguments={"convolution": "GCNConv", "dropout": 0.2})
    run_rank(run_of(tmp_path, "job", own, epochs=3))
    torch.manual_seed(0)
    module = own_module(convolution="GCNConv", dropout=0.2, num_features=WIDTH_IN, num_classes=WIDTH_OUT)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=5e-4, fused=True)
    trainer = Trainer(module, DATA, fanouts=(3, 2), batch_size=64, loss=functional.cross_entropy, optimizer=optimizer)
    trainer.fit(3)
    weights = last_weights(tmp_path / "job")
    for name, tensor in module.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_run_that_is_stopped_goes_on_as_if_nothing_had_been(tmp_path):
    own = model(arguments={"norm": True, "dropout": 0.3})
    run_rank(run_of(tmp_path, "job", own))

    def stop(report: Report) -> None:
        if report.checkpoint:
            raise StopError

    with pytest.raises(StopError):
        run_rank(run_of(tmp_path, "broken", own, report=stop))
    run_rank(run_of(tmp_path, "broken", own))
    one, other = exported(tmp_path / "job"), exported(tmp_path / "broken")
    assert {"norms.0.running_mean", "norms.0.num_batches_tracked"} <= one.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_rows_are_learned_for_nodes_without_features_beside_a_module(tmp_path):
    dataset = featureless(tmp_path / "data")
    own = model(fanouts=(-1, -1), node_embedding_size=6)
    settings = {"dataset": dataset, "epochs": 12, "batch_size": 32, "learning_rate": 0.05}
    trained = run_rank(run_of(tmp_path, "job", own, **settings))
    assert trained["test_accuracy"] > 0.8
    assert exported(tmp_path / "job")["node_table.weight"].shape == (160, 6)
    used = run_rank(run_of(tmp_path, "used", own, used="job", task="evaluate", **settings))
    assert used["test_accuracy"] == trained["test_accuracy"]


def test_links_and_whole_graphs_are_predicted_by_a_module(tmp_path):
    sbm = DatasetSpec(name="sbm", links={"num_val": 0.1, "num_test": 0.2, "eval_negatives": 10})
    links = run_rank(run_of(tmp_path, "links", model(), dataset=sbm, batch_size=1024, epochs=4, eval_every_epochs=4))
    assert links["test_roc_auc"] > 0.6
    graphs = own_set(tmp_path / "graphs", labels="classes")
    settings = {"epochs": 60, "batch_size": 8, "eval_every_epochs": 20, "learning_rate": 0.005, "weight_decay": 0.0}
    own = model(arguments={"convolution": "gin"}, pooling="sum")
    trained = run_rank(run_of(tmp_path, "sets", own, dataset=graphs, **settings))
    assert trained["test_accuracy"] > 0.7  # half of them are stars


class Odd(nn.Module):
    """Fails, or answers wrongly, as ``habit`` says."""

    def __init__(self, *, habit: str, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.habit, self.head = habit, nn.Linear(num_features, num_classes)
        if habit == "lazy":
            self.lazy = nn.LazyLinear(3)
        if habit == "a table of its own":
            self.node_table = nn.Embedding(10, 2)
        if habit == "nothing to learn":
            self.head.requires_grad_(False)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self.habit == "fails":
            raise KeyError("a typing error")
        if self.habit == "one row":
            return self.head(x).mean(dim=0, keepdim=True)
        return self.head(x)[:, :2] if self.habit == "two columns" else self.head(x)


def no_module(*, num_features: int, num_classes: int) -> str:
    return "text"


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (model("nowhere:build"), r"nowhere:build cannot be imported here: No module named"),
        (model("modules:nothing"), r"modules:nothing cannot be imported here: .* has no attribute"),
        (model("test_jobs:no_module"), "must return a torch.nn.Module; found str"),
        (model(arguments={"depth": 3}), r"was called with \['depth', 'num_classes', 'num_features'\]"),
        (model("test_jobs:Odd", arguments={"habit": "lazy"}), "parameters without a size: lazy.weight, lazy.bias"),
        (model("test_jobs:Odd", arguments={"habit": "nothing to learn"}), "has no parameters to train"),
        (
            model("test_jobs:Odd", arguments={"habit": "a table of its own"}, node_embedding_size=4),
            "the module has a node_table of its own",
        ),
        (
            model("test_jobs:Odd", arguments={"habit": "fails"}),
            r"was called \(x, edge_index\) on a first mini-batch and failed: KeyError: 'a typing error'",
        ),
        (model("test_jobs:Odd", arguments={"habit": "one row"}), r"must return \[\d+, C\]; found \(1, 3\)"),
        (model("test_jobs:Odd", arguments={"habit": "two columns"}), "gives 2 numbers for each node; data asks for 3"),
    ],
)
def test_what_a_module_must_be_is_told_before_anything_is_trained(tmp_path, own, words):
    reports: list[Report] = []
    with pytest.raises(ModelInvalidError, match=words):
        run_rank(run_of(tmp_path, "job", own, report=reports.append))
    assert reports == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"module": "no colon"}, "should match pattern"),
        ({"sampler": "ladies"}, "which custom_gnn does not take; choose uniform, weighted, labor"),
        ({"temporal": True}, "custom_gnn may know degrees of the whole graph"),
        ({"hetero": True}, "custom_gnn has no form for several types"),
        ({"hidden_size": 16}, "Extra inputs are not permitted"),
    ],
)
def test_what_no_module_can_be_asked_is_refused_with_the_spec(fields, words):
    with pytest.raises(ValueError, match=words):
        CustomGNNSpec(**{"module": f"{HERE}.modules:own_module"} | fields)


def test_a_module_of_kind_mqgnn_is_named_apart_from_one_of_kind_megagraph(tmp_path):
    run = run_of(tmp_path, "job", model())
    with pytest.raises(ValueError, match=r"kind megagraph trains .*; found model 'custom_gnn'"):
        replace(run, spec=TrainSpec.model_validate(run.spec.model_dump() | {"kind": "megagraph"}))
