"""Graphs that change while they are trained on: what is new, what stays, and what is dropped of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges, in_neighbors
from tests.workers.mqgnn.runs import CPU, Settings, train_by_hand
from workers.data.edges import from_edges, to_edges
from workers.data.feature_server import FeatureServer
from workers.data.features import DenseFeatures, SparseFeatures, compact, windows
from workers.data.remote_features import Holder, RemoteFeatures
from workers.errors import DatasetInvalidError
from workers.mqgnn.feature_cache import fill_cache
from workers.mqgnn.graph_versions import Change, ChangingGraph
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.subgraph_cache import SubgraphCache

GRAPH, LARGE = clustered_graph(300), clustered_graph(1200)
PATH = graph_of_edges([(0, 1), (1, 2), (2, 3)], num_nodes=5, directed=False)


def pairs(graph: ChangingGraph) -> set[tuple[int, int]]:
    now = graph.now.graph
    return {(int(source), int(target)) for source, target in zip(*to_edges(now.indptr, now.indices), strict=True)}


def test_a_change_makes_a_new_version_and_leaves_the_old_one():
    changing = ChangingGraph(PATH)
    before = changing.now
    assert changing.add_edges(np.array([4]), np.array([0])) == 1
    assert changing.remove_edges(np.array([1]), np.array([2])) == 2
    assert pairs(changing) == {(0, 1), (1, 0), (2, 3), (3, 2), (4, 0), (0, 4)}
    assert (before.number, before.graph.num_edges) == (0, 6)
    assert before.graph.indices is PATH.indices


def test_directed_changes_go_one_way():
    changing = ChangingGraph(PATH)
    changing.add_edges(np.array([4]), np.array([0]), directed=True)
    changing.remove_edges(np.array([0]), np.array([1]), directed=True)
    assert in_neighbors(changing.now.graph, 0).tolist() == [1, 4]
    assert in_neighbors(changing.now.graph, 1).tolist() == [2]


def test_what_is_there_already_and_self_loops_make_no_version():
    changing, told = ChangingGraph(PATH), []
    changing.tell(told.append)
    assert changing.add_edges(np.array([0, 2, 2]), np.array([1, 2, 1])) == 0
    assert changing.remove_edges(np.array([], dtype=int), np.array([], dtype=int)) == 0
    assert changing.update_features(np.array([], dtype=int), np.empty((0, 3))) == 0
    assert told == []


def test_listeners_hear_what_is_touched_before_the_version_is_there():
    changing, told = ChangingGraph(PATH), []
    changing.tell(lambda change: told.append((change.number, [*change.targets], [*change.rows], changing.now.number)))
    changing.add_edges(np.array([4, 0]), np.array([3, 1]))
    changing.update_features(np.array([2, 0]), np.ones((2, 3)))
    changing.remove_edges(np.array([2]), np.array([1]), directed=True)
    assert told == [(1, [3, 4], [], 0), (2, [], [2, 0], 1), (3, [1], [], 2)]


@pytest.mark.parametrize("seed", range(5))
def test_changes_give_the_graph_that_is_built_from_all_edges(seed):
    rng = np.random.default_rng(seed)
    graph = clustered_graph(40, degree=rng.integers(0, 8), seed=seed)
    changing = ChangingGraph(graph)
    for _ in range(4):
        ends = rng.integers(40, size=(2, 30))
        changing.add_edges(*ends, directed=bool(rng.integers(2)))
        there = np.array(sorted(pairs(changing)))
        gone = there[rng.random(len(there)) < 0.2]
        changing.remove_edges(gone[:, 0], gone[:, 1], directed=True)
        now, kept = changing.now.graph, np.array(sorted(pairs(changing)))
        assert {*map(tuple, there)} - {*map(tuple, gone)} == pairs(changing)
        expected = from_edges(kept[:, 0], kept[:, 1], num_nodes=40, directed=True)
        np.testing.assert_array_equal(now.indptr, expected.indptr)
        np.testing.assert_array_equal(now.indices, expected.indices)
        assert now.indices.dtype == graph.indices.dtype


FAULTS: list[tuple[Callable[[ChangingGraph], Any], str]] = [
    (lambda graph: graph.add_edges(np.array([0]), np.array([5])), "names node 5, which does not exist"),
    (lambda graph: graph.remove_edges(np.array([0, 3]), np.array([1, 0])), "edge 3 -> 0 cannot be removed: it is not"),
    (lambda graph: graph.update_features(np.array([5]), np.ones((1, 3))), "features of node 5 were asked"),
    (lambda graph: graph.update_features(np.array([1, 1]), np.ones((2, 3))), "node 1 is given new features twice"),
    (lambda graph: graph.update_features(np.array([1]), np.ones((1, 2))), r"are \[1, 3\] numbers; found \(1, 2\)"),
    (lambda graph: graph.update_features(np.array([4]), np.full((1, 3), np.nan)), "features of node 4 are not finite"),
]


@pytest.mark.parametrize(("change", "said"), FAULTS)
def test_what_cannot_be_changed_is_named_and_nothing_changes(change, said):
    changing = ChangingGraph(PATH)
    with pytest.raises(DatasetInvalidError, match=said):
        change(changing)
    assert changing.now.number == 0


def test_edges_with_types_stay_as_they_are():
    typed = ChangingGraph(replace(PATH, edge_types=np.zeros(6, dtype=np.uint8)))
    with pytest.raises(DatasetInvalidError, match="carry edge_types"):
        typed.add_edges(np.array([4]), np.array([0]))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_new_features_are_those_of_the_next_version_alone(form):
    rng = np.random.default_rng(0)
    cells = rng.random((300, 40)) * (rng.random((300, 40)) < (1.0 if form == "dense" else 0.05))
    features = compact(DenseFeatures(cells.astype(np.float32)))
    assert isinstance(features, DenseFeatures if form == "dense" else SparseFeatures)
    changing = ChangingGraph(replace(GRAPH, features=features))
    rows, values = np.array([250, 3]), np.stack([np.arange(40.0), np.zeros(40)]).astype(np.float32)
    before = changing.now
    changing.update_features(rows, values)
    expected = cells.astype(np.float32)
    np.testing.assert_array_equal(before.graph.features.gather(np.arange(300)), expected)
    expected[rows] = values
    np.testing.assert_array_equal(changing.now.graph.features.gather(np.arange(300)), expected)


def test_new_features_of_others_reach_caches_and_holders():
    cells = GRAPH.features.gather(np.arange(300))
    parts = list(windows(DenseFeatures(cells), offsets=np.array([0, 100, 300])))
    servers = [
        FeatureServer(part, first=first, address="127.0.0.1") for part, first in zip(parts, (0, 100), strict=True)
    ]
    holders = [
        Holder(f"rank {place}", first, end, "127.0.0.1", servers[place].port, servers[place].token)
        for place, (first, end) in enumerate([(0, 100), (100, 300)])
    ]
    remotes = [
        RemoteFeatures(parts[place], first=holders[place].first, holders=[holders[1 - place]], server=servers[place])
        for place in range(2)
    ]
    cached = fill_cache(remotes[0], hottest=np.arange(100, 300), max_bytes=4 * 300 + 50 * 32)
    rows, values = np.array([5, 120, 280]), np.full((3, 8), 7, dtype=np.float32)
    for features in (cached, remotes[1]):  # every replica makes the change
        ChangingGraph(replace(GRAPH, features=features)).update_features(rows, values)
    cells[rows] = values
    for features in (cached, remotes[1]):
        np.testing.assert_array_equal(features.gather(np.arange(300)), cells)
    assert cached.hits == 50
    for each in (*remotes,):
        each.close()
    for server in servers:
        server.stop()


def test_a_mini_batch_is_of_one_version():
    changing, order = ChangingGraph(GRAPH), SeedOrder(np.arange(300), 32, seed=0)
    stages = build_stages(changing, order=order, fanouts=(3, 2), rank=0, device=CPU)
    sample, prepare = (stage.make_worker() for stage in stages)
    early = sample(BatchTask(epoch=1, batch=0))
    changing.add_edges(np.zeros(100, dtype=int), np.arange(1, 101))
    changing.update_features(np.arange(300), np.zeros((300, 8)))
    late = sample(BatchTask(epoch=1, batch=0))
    nodes = early.subgraph.node_ids
    batch, next_batch = prepare(early), prepare(late)
    np.testing.assert_array_equal(batch.degrees.numpy(), GRAPH.in_degrees(nodes))
    np.testing.assert_array_equal(batch.x.numpy(), GRAPH.features.gather(nodes))
    assert next_batch.x.abs().sum() == 0
    np.testing.assert_array_equal(next_batch.degrees.numpy(), changing.now.graph.in_degrees(late.subgraph.node_ids))


def run_with_changes(*, max_bytes: int, sampler: str, in_place: bool) -> tuple[list[float], SubgraphCache]:
    """Losses of four epochs, all by the samples of the first, while a few edges and features change in between."""
    changing, cache = ChangingGraph(LARGE), SubgraphCache(max_bytes=max_bytes)
    settings = Settings(
        model="gcn",
        fanouts=(3, 2) if sampler == "uniform" else (30, 20),
        sampler=sampler,
        epochs=4,
        batch_size=24,
        dtype=torch.float32,
        in_place=in_place,
        reuse=lambda _: 1,
    )
    rng = np.random.default_rng(0)
    steps_per_epoch = -(-int((LARGE.split == 0).sum()) // 24)
    steps = iter(range(1, 10_000))

    def change(*_: object) -> None:
        step = next(steps)
        if step % steps_per_epoch == 3:  # during an epoch
            ends = rng.integers(LARGE.num_nodes, size=(2, 1))
            changing.add_edges(*ends)
            changing.update_features(ends[0, :1], np.full((1, 8), step))
        elif step % steps_per_epoch == 0:  # between two
            now = changing.now.graph
            changing.remove_edges(now.indices[:1], np.searchsorted(now.indptr, [0], side="right") - 1, directed=True)

    losses = train_by_hand(changing, settings, watch=change, subgraphs=cache)[1]
    assert changing.now.number == 4 * 3
    return losses, cache


@pytest.mark.parametrize("in_place", [False, True])
def test_g41_edges_that_come_and_go_drop_what_they_touch_and_nothing_else(in_place):
    """Case G41 (pytorch_sparse 209): sampling while the graph is updated."""
    losses, nothing_kept = run_with_changes(max_bytes=0, sampler="uniform", in_place=in_place)
    found, cache = run_with_changes(max_bytes=10**9, sampler="uniform", in_place=in_place)
    assert found == losses
    figures = cache.figures()
    assert 0 < figures["cache_subgraph_dropped"] < figures["cache_subgraph_hits"]
    assert figures["graph_version"] == nothing_kept.figures()["graph_version"]
    assert figures["cache_subgraph_misses"] <= len(losses) / 4 + figures["cache_subgraph_dropped"]


def test_layer_wise_samples_depend_on_all_edges():
    losses, _ = run_with_changes(max_bytes=0, sampler="ladies", in_place=False)
    found, cache = run_with_changes(max_bytes=10**9, sampler="ladies", in_place=False)
    assert found == losses
    assert cache.figures()["cache_subgraph_hits"] == 0 < cache.figures()["cache_subgraph_dropped"]


def test_what_was_sampled_before_a_change_is_not_kept_after_it():
    changing, cache = ChangingGraph(GRAPH), SubgraphCache(max_bytes=10**9)
    order = SeedOrder(np.arange(300), 32, seed=0, reuse=lambda _: 1)
    stages = build_stages(changing, order=order, fanouts=(3, 2), rank=0, device=CPU, subgraphs=cache)
    sample = stages[0].make_worker()
    first = sample(BatchTask(epoch=1, batch=0))

    def while_sampling():
        cache.forget(Change(1, targets=first.seeds[:1], rows=np.array([])), num_nodes=300)
        return first.subgraph

    cache.get(epoch=2, sampled_in=1, batch=5, seeds=first.seeds, sample=while_sampling, version=0)
    assert cache.figures()["cache_subgraph_bytes"] == 0
