"""Batches of own rows: shards tile the graphs, ids are the same everywhere, and nothing is made twice."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from planner.plan import Partition
from tests.distributed.odd_graphs import odd_set, one_graph
from workers.comm.axis import Axis
from workers.data.graph import GraphDataset, Task
from workers.data.graph_encodings.distances import distance_buckets
from workers.data.partition import NodeCuts
from workers.data.paths import DataPaths
from workers.megagraph import encoded_rows as module
from workers.megagraph.batches import LabelledBatch, ShardedBatches
from workers.megagraph.training_step import masked_loss
from workers.model_specs.needs import Needs
from workers.ops.near_pairs import NearPairs
from workers.spec import TrainingSpec
from workers.training.losses import build_loss
from workers.training.objective import resolve_objective

MAX_DISTANCE = 2


def shard(dataset: GraphDataset, graphs: Sequence[int], *, index: int, degree: int) -> LabelledBatch:
    axis = Axis(ranks=tuple(range(degree)), index=index)
    made = ShardedBatches(
        dataset, axis=axis, needs=Needs(max_distance=MAX_DISTANCE), dtype=torch.float32, device=torch.device("cpu")
    )
    return made.batch(graphs, draw=5)


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_the_shards_of_all_ranks_tile_each_graph_of_the_batch(degree: int) -> None:
    dataset, graphs = odd_set(), (4, 0, 1)
    parts = [shard(dataset, graphs, index=index, degree=degree) for index in range(degree)]
    first_ids = np.cumsum([0, *(graph.num_nodes for graph in dataset.graphs)])
    for position, graph in enumerate(graphs):
        source = dataset.graphs[graph]
        rows = [part.inputs.layout.rows(index, position) for index, part in enumerate(parts)]
        whole = {
            name: torch.cat([getattr(part.inputs, name)[own] for part, own in zip(parts, rows, strict=True)])
            for name in ("x", "degree", "node_ids")
        }
        everything = np.arange(source.num_nodes)
        assert torch.equal(whole["x"], torch.from_numpy(source.features.gather(everything)))
        assert whole["degree"].tolist() == np.diff(source.indptr).tolist()
        assert whole["node_ids"].tolist() == (everything + first_ids[graph]).tolist()
        buckets = torch.cat([part.inputs.buckets[position] for part in parts])
        assert np.array_equal(buckets, distance_buckets(source, rows=everything, max_distance=MAX_DISTANCE))
        assert torch.cat([part.y[own] for part, own in zip(parts, rows, strict=True)]).tolist() == source.y.tolist()


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_a_graph_that_is_predicted_as_a_whole_is_counted_by_its_first_shard_alone(task: Task) -> None:
    dataset, graphs = graph_level(odd_set(), task=task), (4, 0, 1)
    first, second = (shard(dataset, graphs, index=index, degree=2) for index in range(2))
    expected = np.concatenate([dataset.graphs[graph].y for graph in graphs])
    for part in (first, second):
        assert np.array_equal(part.y, expected)
    assert (first.ids.tolist(), second.ids.tolist()) == ([4, 0, 1], [-1, -1, -1])
    assert first.split.tolist() == [int(dataset.graphs[graph].split[0]) for graph in graphs]
    assert second.split.tolist() == [-1, -1, -1]
    outputs = torch.randn(3, dataset.num_classes)
    loss = build_loss(resolve_objective(TrainingSpec(), dataset))
    assert masked_loss(outputs, first, loss=loss, num_targets=1) > 0
    assert masked_loss(outputs, second, loss=loss, num_targets=1) == 0
    none = shard(dataset, (), index=0, degree=2)
    assert none.y.shape == ((0,) if task == "classes" else (0, 1))


def graph_level(dataset: GraphDataset, *, task: Task) -> GraphDataset:
    """The same graphs, each with one label and one part."""
    split = np.zeros(1, dtype=np.int8)
    labels = [np.array([n % 2]) if task == "classes" else np.array([[n / 2]], "f4") for n in range(len(dataset.graphs))]
    graphs = tuple(replace(graph, y=y, split=split) for graph, y in zip(dataset.graphs, labels, strict=True))
    num_outputs = 2 if task == "classes" else 1
    return replace(dataset, graphs=graphs, level="graph", task=task, num_classes=num_outputs)


def test_all_ranks_agree_on_the_layout() -> None:
    layouts = [shard(odd_set(), (0, 2), index=index, degree=3).inputs.layout for index in range(3)]
    assert len({layout.sizes for layout in layouts}) == 1
    assert [layout.shard for layout in layouts] == [0, 1, 2]


def test_a_batch_of_no_graphs_has_no_rows() -> None:
    batch = shard(odd_set(), (), index=1, degree=2)
    assert batch.inputs.x.shape == (0, odd_set().num_features)
    assert batch.inputs.layout.num_graphs == len(batch.y) == len(batch.split) == 0


def test_distances_are_searched_once_per_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def counting(graph, **parameters):  # type: ignore[no-untyped-def]
        searched.append(graph.num_nodes)
        return distance_buckets(graph, **parameters)

    monkeypatch.setattr(module, "distance_buckets", counting)
    made = ShardedBatches(
        odd_set(), axis=Axis((0,), 0), needs=Needs(max_distance=2), dtype=torch.float32, device=torch.device("cpu")
    )
    made.prepare([0, 1])
    made.batch((0, 1), draw=1)
    made.batch((1, 2), draw=2)
    assert searched == [10, 1, 7]


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("partition", [Partition(), Partition(order="random")], ids=lambda partition: partition.order)
@pytest.mark.parametrize("is_stored", [True, False])
def test_near_pairs_say_what_the_dense_index_says(
    degree: int, partition: Partition, is_stored: bool, tmp_path: Path
) -> None:
    dataset = one_graph()
    for index in range(degree):
        options = {
            "axis": Axis(ranks=tuple(range(degree)), index=index),
            "cuts": NodeCuts(dataset.graphs, partition=partition, num_parts=degree),
            "paths": DataPaths(root=None, cache=tmp_path) if is_stored else None,
            "dtype": torch.float32,
            "device": torch.device("cpu"),
        }
        dense, near, again = (
            ShardedBatches(dataset, needs=Needs(max_distance=2, near_pairs=is_near), **options).batch((0,), draw=0)
            for is_near in (False, True, True)
        )
        for found in (near.inputs.buckets[0], again.inputs.buckets[0]):
            assert isinstance(found, NearPairs)
            assert torch.equal(found.dense(), dense.inputs.buckets[0])
    assert len(list(tmp_path.glob("encodings/pairs_within-*"))) == (degree if is_stored else 0)


@pytest.mark.parametrize("partition", [Partition(), Partition(order="random")], ids=lambda partition: partition.order)
def test_what_is_searched_in_an_only_graph_is_kept_by_shard_and_read_by_the_next_run(
    partition: Partition, tmp_path: Path
) -> None:
    dataset = one_graph()
    needs = Needs(max_distance=2, edge_paths=True, walk_length=3)
    for index in range(2):
        options = {
            "axis": Axis(ranks=(0, 1), index=index),
            "needs": needs,
            "cuts": NodeCuts(dataset.graphs, partition=partition, num_parts=2),
            "dtype": torch.float64,
            "device": torch.device("cpu"),
        }
        paths = DataPaths(root=None, cache=tmp_path)
        computed, kept, again = (
            ShardedBatches(dataset, paths=where, **options).batch((0,), draw=0).inputs for where in (None, paths, paths)
        )
        order = options["cuts"].cut(0, 2).order
        own = options["cuts"].cut(0, 2).nodes(index)
        whole = distance_buckets(dataset.graphs[0], rows=own, max_distance=2)
        assert np.array_equal(computed.buckets[0], whole[:, order])
        for found in (kept, again):
            assert torch.equal(found.buckets[0], computed.buckets[0])
            assert torch.equal(found.paths[0], computed.paths[0])
            assert torch.equal(found.walks, computed.walks)
    for name in ("distance_buckets", "edge_paths", "return_probabilities"):
        assert len(list(tmp_path.glob(f"encodings/{name}-*"))) == 2


def test_the_ids_of_a_whole_graph_come_in_the_order_of_the_cut() -> None:
    dataset = odd_set()
    cuts = NodeCuts(dataset.graphs, partition=Partition(order="random"), num_parts=2)
    made = [
        ShardedBatches(
            dataset,
            axis=Axis(ranks=(0, 1), index=index),
            cuts=cuts,
            needs=Needs(pair_dropout=True),
            dtype=torch.float32,
            device=torch.device("cpu"),
        ).batch((2, 0), draw=0)
        for index in range(2)
    ]
    for position in range(2):
        own = [part.inputs.node_ids[part.inputs.layout.rows(index, position)] for index, part in enumerate(made)]
        for part in made:
            assert torch.equal(part.inputs.graph_node_ids[position], torch.cat(own))


def test_one_large_graph_is_not_copied_in_every_step() -> None:
    made = ShardedBatches(
        one_graph(), axis=Axis((0,), 0), needs=Needs(max_distance=2), dtype=torch.float32, device=torch.device("cpu")
    )
    first, second = (made.batch((0,), draw=draw).inputs for draw in (1, 2))
    assert first.x.data_ptr() == second.x.data_ptr()
    assert first.buckets[0].data_ptr() == second.buckets[0].data_ptr()
