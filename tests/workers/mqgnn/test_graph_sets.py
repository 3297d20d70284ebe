"""Sampled GNNs on sets of graphs: whole graphs in a mini-batch, predicted by their nodes, or nodes of many graphs."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.test_train import run_all
from workers.comm.axis import Axis
from workers.data.edges import targets_of
from workers.data.graph import TRAIN, Graph, GraphDataset
from workers.data.paths import DataPaths
from workers.data.union import as_one_graph, node_offsets
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.goals import answers_of, draws_of, forward_of
from workers.mqgnn.graph_batches import all_neighbours
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.runtime import run_rank
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec

CPU = torch.device("cpu")


def graph_set(*, level: str = "graph") -> GraphDataset:
    """Nine graphs of 5 to 45 nodes with two numbers each."""
    graphs = []
    for number in range(9):
        graph = clustered_graph(5 * (number + 1), seed=number)
        if level == "graph":
            y = np.array([[number, np.nan if number == 4 else -number]], dtype=np.float32)
            graph = Graph(graph.indptr, graph.indices, graph.features, y=y, split=np.array([TRAIN], dtype=np.int8))
        graphs.append(graph)
    return GraphDataset(
        name="made up",
        graphs=tuple(graphs),
        num_features=8,
        num_classes=2 if level == "graph" else 3,
        fingerprint="",
        level=level,
        task="regression" if level == "graph" else "classes",
    )


def alone(model: torch.nn.Module, graph: Graph) -> torch.Tensor:
    edge_index = torch.from_numpy(np.stack((graph.indices, targets_of(graph.indptr)))).long()
    return model(torch.from_numpy(graph.features.matrix).double(), edge_index)


@pytest.mark.parametrize(("name", "pooling"), [("gin", "sum"), ("gcn", "mean")])
def test_a_mini_batch_of_graphs_gives_what_the_module_gives_for_each_alone(name, pooling):
    dataset = graph_set()
    spec = SampledGNNSpec(name=name, hidden_size=8, fanouts=(10, 5, 3), dropout=0.0, pooling=pooling)
    torch.manual_seed(0)
    model = build_sampled_gnn(spec, num_features=8, num_classes=2).double()
    graph, order = as_one_graph(dataset), SeedOrder(np.arange(9), 4, seed=0)
    sample, prepare = (
        stage.make_worker()
        for stage in build_stages(
            graph,
            order=order,
            fanouts=all_neighbours(spec.fanouts),
            rank=0,
            device=CPU,
            dtype=torch.float64,
            draws=draws_of(dataset, graph),
        )
    )
    forward, seen = forward_of(dataset, pooling=pooling), []
    for number in range(3):
        graphs = order.part(epoch=1, batch=number, rank=0)
        batch = prepare(sample(BatchTask(epoch=1, batch=number)))
        expected = torch.stack([getattr(alone(model, dataset.graphs[g]), pooling)(dim=0) for g in graphs])
        torch.testing.assert_close(forward(model, batch, draw=0), expected)
        assert np.array_equal(batch.y[:, 0], graphs)
        seen += graphs.tolist()
    assert sorted(seen) == list(range(9))

    evaluator = Evaluator(graph, axis=Axis(), device=CPU, dtype=torch.float64)
    (answers,) = answers_of(model, dataset, evaluator=evaluator, axis=Axis(), pooling=pooling)
    expected = torch.stack([getattr(alone(model, graph), pooling)(dim=0) for graph in dataset.graphs])
    torch.testing.assert_close(answers.outputs, expected)
    assert answers.ids.tolist() == list(range(9))


def test_graphs_side_by_side_share_no_edge_and_keep_their_rows():
    dataset = graph_set(level="node")
    graph, offsets = as_one_graph(dataset), node_offsets(dataset)
    for number, part in enumerate(dataset.graphs):
        rows = slice(offsets[number], offsets[number + 1])
        edges = slice(*graph.indptr[[rows.start, rows.stop]])
        assert np.array_equal(graph.indices[edges], part.indices + offsets[number])
        assert np.array_equal(graph.features.gather(np.arange(rows.start, rows.stop)), part.features.matrix)
        assert np.array_equal(graph.y[rows], part.y)
        assert np.array_equal(graph.split[rows], part.split)
    assert as_one_graph(GraphDataset(**vars(dataset) | {"graphs": dataset.graphs[:1]})) is dataset.graphs[0]


def test_nodes_of_many_graphs_are_trained_on_as_those_of_one(tmp_path):
    values, reports = run_all(tmp_path / "cache", tmp_path / "job", dataset=DatasetSpec(name="sbm-graphs"), epochs=6)
    assert values["test_accuracy"] > 0.5
    assert reports[-1].values["loss"] < reports[0].values["loss"]


def own_set(folder: Path, *, labels: str) -> DatasetSpec:
    """Rings and stars: what a graph is, or how many nodes it has, is seen in its degrees."""
    folder.mkdir()
    graphs, nodes, edges = ["id,label,split"], ["id,graph,one,degree"], ["source,target"]
    for number in range(60):
        size, is_star = 4 + number % 5, number % 2
        label = ("ring", "star")[is_star] if labels == "classes" else size * 0.25 + 0.1
        graphs.append(f"g{number},{label},{('train', 'train', 'val', 'test')[number // 2 % 4]}")
        for node in range(size):
            nodes.append(f"{number}-{node},g{number},1,{size - 1 if is_star and not node else 1 + (not is_star)}")
            other = 0 if is_star else (node + 1) % size
            if other != node:
                edges.append(f"{number}-{node},{number}-{other}")
    for name, lines in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return DatasetSpec(path=str(folder))


def run(tmp_path: Path, name: str, dataset: DatasetSpec, *, model_from: Path | None = None, **use) -> dict[str, float]:
    spec = TrainSpec(
        kind="mqgnn",
        dataset=dataset,
        model=SampledGNNSpec(name="gin", hidden_size=16, fanouts=(4, 3), dropout=0.0, pooling="sum"),
        training=TrainingSpec(epochs=60, batch_size=8, eval_every_epochs=20, learning_rate=0.005, weight_decay=0.0),
        **use,
    )
    data = DataPaths(root=None, cache=tmp_path / "cache")
    return run_rank(sampled_run(spec, job_dir=tmp_path / name, data=data, model_from=model_from))


def test_a_job_tells_graphs_apart_and_its_model_predicts_each_once(tmp_path):
    dataset = own_set(tmp_path / "data", labels="classes")
    trained = run(tmp_path, "job", dataset)
    assert trained["test_accuracy"] > 0.9
    use = {"from_job": "job", "model_from": tmp_path / "job" / "export"}
    assert run(tmp_path, "used", dataset, task="predict", **use)["test_accuracy"] == trained["test_accuracy"]
    folder = tmp_path / "used" / "predictions"
    assert sum(json.loads((folder / "manifest.json").read_text())["rows"].values()) == 60
    rows = pyarrow.parquet.read_table(folder / "part-00000.parquet").to_pydict()
    assert rows["id"] == list(range(60))
    hit = [row for row, part in enumerate(rows["split"]) if part == "test"]
    share = np.mean([rows["prediction"][row] == rows["label"][row] for row in hit])
    assert share == pytest.approx(trained["test_accuracy"])


def test_a_job_predicts_a_number_for_each_graph(tmp_path):
    trained = run(tmp_path, "job", own_set(tmp_path / "data", labels="numbers"))
    assert trained["test_mae"] < 0.3  # half of the numbers are further than that from their mean
