"""Cutting the nodes of a graph: every order keeps all nodes, shards are of equal work, and METIS cuts fewer edges."""

import sys

import numpy as np
import pytest

from planner.errors import PlanInvalidError
from planner.plan import Partition
from tests.distributed.odd_graphs import STAR, build_graph, random_edges, with_self_loops
from workers.data.graph import Graph
from workers.data.partition import NodeCut, NodeCuts, balanced_cut, digest_of

ORDERS = ("natural", "metis", "greedy", "random")


def cut_nodes(graph: Graph, *, num_shards: int, order: str = "natural", balance: str = "rows") -> NodeCut:
    partition = Partition(order=order, balance=balance)
    return NodeCuts([graph], partition=partition, num_parts=num_shards).cut(0, num_shards)


def two_cliques(size: int) -> Graph:
    """Two cliques of ``size`` nodes with one edge between them; neighbours have numbers far apart."""
    pairs = [(i, j) for i in range(size) for j in range(i)]
    edges = [(2 * i + side, 2 * j + side) for i, j in pairs for side in (0, 1)]
    return build_graph(2 * size, [*edges, (0, 1)], seed=0)


def cut_edges(graph: Graph, order: str) -> int:
    cut = cut_nodes(graph, num_shards=2, order=order)
    shard = np.searchsorted(cut.starts, cut.place, side="right") - 1
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return int((shard[graph.indices] != shard[targets]).sum())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("balance", ["rows", "edges"])
@pytest.mark.parametrize("num_nodes", [1, 2, 10, 41])
@pytest.mark.parametrize("num_shards", [1, 3, 4])
def test_every_node_has_one_place_in_one_shard(order: str, balance: str, num_nodes: int, num_shards: int) -> None:
    graph = with_self_loops(build_graph(num_nodes, random_edges(num_nodes, num_nodes, seed=1), seed=2), [0])
    cut = cut_nodes(graph, num_shards=num_shards, order=order, balance=balance)
    assert len(cut.sizes) == num_shards
    nodes = np.concatenate([cut.nodes(shard) for shard in range(num_shards)])
    assert sorted(nodes.tolist()) == list(range(num_nodes))
    assert (nodes[cut.place] == np.arange(num_nodes)).all()


def test_metis_and_greedy_parts_keep_neighbours_together() -> None:
    graph = two_cliques(8)
    assert cut_edges(graph, "metis") == 2, "the bridge, in both directions"
    assert cut_edges(graph, "greedy") == 2
    assert cut_edges(graph, "natural") > 50


def test_shards_of_equal_rows_differ_by_one_at_most() -> None:
    for order in ORDERS:
        sizes = cut_nodes(build_graph(41, STAR, seed=0), num_shards=4, order=order).sizes
        assert max(sizes) - min(sizes) <= 1


def test_shards_of_equal_edges_give_the_hub_fewer_rows() -> None:
    star = build_graph(101, [(0, leaf) for leaf in range(1, 101)], seed=0)
    sizes = cut_nodes(star, num_shards=3, balance="edges").sizes
    assert sum(sizes) == 101
    assert sizes[0] == 1, "the hub and its hundred edges are a third of all work"


def test_borders_lie_where_the_sum_is_nearest_to_its_share() -> None:
    assert balanced_cut(np.array([1, 1, 1, 1, 8]), num_shards=2) == (4, 1)
    assert balanced_cut(np.array([5, 1, 1, 1]), num_shards=2) == (1, 3)
    assert balanced_cut(np.array([], dtype=int), num_shards=2) == (0, 0)
    assert balanced_cut(np.array([3]), num_shards=3) == (0, 1, 0)


def test_the_digest_tells_orders_and_cuts_apart_and_is_the_same_every_time() -> None:
    graph = build_graph(41, random_edges(41, 90, seed=1), seed=2)
    cuts = [(order, balance) for order in ORDERS for balance in ("rows", "edges")]
    digests = [digest_of([cut_nodes(graph, num_shards=3, order=order, balance=balance)]) for order, balance in cuts]
    again = [digest_of([cut_nodes(graph, num_shards=3, order=order, balance=balance)]) for order, balance in cuts]
    assert digests == again
    assert len(set(digests)) == len(digests)


def test_without_pymetis_the_error_names_the_order_that_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    graph = build_graph(10, STAR, seed=0)
    with pytest.raises(PlanInvalidError, match="'greedy', which needs nothing"):
        cut_nodes(graph, num_shards=2, order="metis")
    assert cut_nodes(graph, num_shards=2, order="greedy").sizes == (5, 5)
