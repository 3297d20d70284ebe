"""Rows learned for each node: steps by hand, and a job on nodes without features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import Settings, train_by_hand
from tests.workers.mqgnn.test_train import StopError, exported, last_weights, make_run
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import ExportMismatchError, ModelInvalidError
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.table_exchange import with_learned_features
from workers.mqgnn.train import train
from workers.runtime import run_rank
from workers.spec import DatasetSpec, SampledGNNSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.model_fit import resolve_model
from workers.training.run import Report

GRAPH = clustered_graph(300)
SPEC = SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(-1, -1), dropout=0.0, node_embedding_size=6)


def test_steps_are_those_of_torchs_sparse_embedding_beside_the_module():
    settings = Settings(fanouts=(-1, -1), node_embedding_size=6)
    found, losses = train_by_hand(GRAPH, settings)

    torch.manual_seed(settings.seed)
    model = build_sampled_gnn(SPEC, num_features=8, num_classes=3).double()
    model.node_table.fill(300)
    embedding = torch.nn.Embedding.from_pretrained(model.node_table.weight.clone(), freeze=False, sparse=True)
    optimizers = (
        torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4),
        torch.optim.SparseAdam(embedding.parameters(), lr=0.01),
    )
    targets = np.repeat(np.arange(300), np.diff(GRAPH.indptr))
    edge_index = torch.from_numpy(np.stack((GRAPH.indices, targets))).long()
    x, y = torch.from_numpy(GRAPH.features.matrix).double(), torch.from_numpy(GRAPH.y)
    order = SeedOrder(np.flatnonzero(GRAPH.split == 0), 32, settings.seed)
    expected = []
    for task in order.tasks(0, 2 * order.steps_per_epoch):
        seeds = torch.from_numpy(order.part(epoch=task.epoch, batch=task.batch, rank=0))
        near = np.union1d(seeds, GRAPH.indices[np.isin(targets, seeds)])
        nodes = torch.from_numpy(np.union1d(near, GRAPH.indices[np.isin(targets, near)]))  # those of two hops
        rows = torch.zeros(300, 6, dtype=torch.float64).index_put((nodes,), embedding(nodes))
        loss = functional.cross_entropy(model(torch.cat((x, rows), dim=1), edge_index)[seeds], y[seeds])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-8)
    torch.testing.assert_close(found["node_table.weight"], embedding.weight.detach(), rtol=0, atol=1e-7)


def featureless(folder: Path) -> DatasetSpec:
    """Rings of nodes of one class each: who a node is can be learned from its neighbours alone."""
    folder.mkdir()
    rings = [[f"{ring}-{place}" for place in range(40)] for ring in range(4)]
    edges = [
        f"{ring[place]},{ring[(place + step) % 40]}" for ring in rings for place in range(40) for step in (1, 2, 3)
    ]
    nodes = [f"{node},{number}" for number, ring in enumerate(rings) for node in ring]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]))
    (folder / "nodes.csv").write_text("\n".join(["id,label", *nodes]))
    return DatasetSpec(path=str(folder))


def run_of(tmp_path: Path, name: str, *, report=lambda report: None, **use):
    run = make_run(
        tmp_path / "cache",
        tmp_path / name,
        report=report,
        dataset=DatasetSpec(path=str(tmp_path / "data")),
        plan={"fanouts": (-1, -1), "batch_size": 32},
        batch_size=32,
        epochs=12,
        learning_rate=0.05,
    )
    spec = TrainSpec.model_validate(run.spec.model_dump() | {"model": SPEC.model_dump()} | use)
    return replace(run, spec=spec)


def test_a_job_learns_nodes_without_features_resumes_exactly_and_its_model_is_used(tmp_path):
    featureless(tmp_path / "data")
    trained = train(run_of(tmp_path, "job"))
    assert trained["test_accuracy"] > 0.8
    assert exported(tmp_path / "job")["node_table.weight"].shape == (160, 6)

    def stop(report: Report) -> None:
        if report.checkpoint:
            raise StopError

    with pytest.raises(StopError):
        train(run_of(tmp_path, "broken", report=stop))
    train(run_of(tmp_path, "broken"))
    one, other = last_weights(tmp_path / "job"), last_weights(tmp_path / "broken")
    assert all(torch.equal(one[name], other[name]) for name in one)

    use = replace(
        run_of(tmp_path, "used", task="evaluate", from_job="job"), model_from=Folder(tmp_path / "job" / "export")
    )
    assert run_rank(use)["test_accuracy"] == trained["test_accuracy"]
    with pytest.raises(ExportMismatchError, match="learned rows for 160 nodes, the graph has 300"):
        with_learned_features(GRAPH, load_exported(Folder(tmp_path / "job" / "export")))


def test_nodes_without_features_need_a_table_and_a_table_needs_steps_of_all(tmp_path):
    dataset = load_dataset(featureless(tmp_path / "data"), paths=DataPaths(root=None, cache=tmp_path / "cache"))
    assert dataset.num_features == 0
    assert resolve_model(SPEC, dataset) == SPEC
    with pytest.raises(ModelInvalidError, match="has no features: give its nodes some, or train"):
        resolve_model(SPEC.model_copy(update={"node_embedding_size": 0}), dataset)
    with pytest.raises(ValueError, match=r"is learned in steps of all replicas; found training.sync 'local_sgd'"):
        TrainSpec(kind="mqgnn", dataset={"name": "sbm"}, model=SPEC, training={"sync": {"name": "local_sgd"}})
