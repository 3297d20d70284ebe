"""The edges of all shards together are those of the graph, and what one shard sends is what the other expects."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import Partition
from tests.distributed.odd_graphs import build_graph, odd_set, random_edges, with_self_loops
from workers.data.graph import Graph
from workers.data.partition import NodeCut, NodeCuts
from workers.data.shard_edges import join_edges, shard_edges
from workers.ops.row_edges import RowEdges


def cut_nodes(graph: Graph, *, num_shards: int, order: str = "natural", balance: str = "rows") -> NodeCut:
    partition = Partition(order=order, balance=balance)
    return NodeCuts([graph], partition=partition, num_parts=num_shards).cut(0, num_shards)


def extended_rows(parts: Sequence[RowEdges], own: Sequence[torch.Tensor], shard: int) -> torch.Tensor:
    """Own rows and halo rows of ``shard``, by what the other shards say they send."""
    edges = parts[shard]
    if edges.halo is None:
        return own[shard]
    sent = [own[other][parts[other].halo.send[shard]] for other in range(len(parts))]
    assert [len(rows) for rows in sent] == list(edges.halo.receive)
    return torch.cat([own[shard], *sent])


def neighbours(parts: Sequence[RowEdges], own: Sequence[torch.Tensor]) -> dict[int, list[int]]:
    """In-neighbours of every node, as the shards see them; ``own[shard]`` are the numbers of its nodes."""
    found = {}
    for shard, edges in enumerate(parts):
        numbers = extended_rows(parts, own, shard)
        assert edges.num_sources == len(numbers)
        for row in range(edges.num_rows):
            sources = edges.sources[int(edges.indptr[row]) : int(edges.indptr[row + 1])]
            found[int(own[shard][row])] = numbers[sources].tolist()
    return found


def in_neighbours(graph: Graph, first: int = 0) -> dict[int, list[int]]:
    return {
        first + node: (graph.indices[graph.indptr[node] : graph.indptr[node + 1]] + first).tolist()
        for node in range(graph.num_nodes)
    }


def owned(cut: NodeCut, first: int = 0) -> list[torch.Tensor]:
    return [torch.from_numpy(cut.nodes(shard) + first) for shard in range(len(cut.sizes))]


@settings(max_examples=40)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 60),
    num_shards=st.integers(1, 5),
    order=st.sampled_from(["natural", "greedy", "random"]),
    balance=st.sampled_from(["rows", "edges"]),
    seed=st.integers(0, 5),
)
def test_shards_hold_every_edge_once_and_agree_on_what_travels(
    num_nodes: int, num_edges: int, num_shards: int, order: str, balance: str, seed: int
) -> None:
    graph = with_self_loops(build_graph(num_nodes, random_edges(num_nodes, num_edges, seed=seed), seed=seed), [0])
    cut = cut_nodes(graph, num_shards=num_shards, order=order, balance=balance)
    parts = [shard_edges(graph, cut=cut, shard=shard) for shard in range(num_shards)]
    assert neighbours(parts, owned(cut)) == in_neighbours(graph)
    for shard, edges in enumerate(parts):
        if edges.halo is not None:
            assert not len(edges.halo.send[shard])
            assert all(len(rows.unique()) == len(rows) for rows in edges.halo.send)


def test_edges_of_a_directed_graph_belong_to_the_row_they_point_to() -> None:
    graph = Graph(
        indptr=np.array([0, 0, 1, 3]), indices=np.array([0, 0, 1], dtype=np.int32), features=None, y=None, split=None
    )
    cut = cut_nodes(graph, num_shards=3)
    parts = [shard_edges(graph, cut=cut, shard=shard) for shard in range(3)]
    assert neighbours(parts, owned(cut)) == {0: [], 1: [0], 2: [0, 1]}
    assert [edges.halo.num_rows for edges in parts] == [0, 1, 2]


@pytest.mark.parametrize("num_shards", [1, 2, 4])
def test_graphs_of_one_batch_are_joined_row_by_row_and_halo_by_halo(num_shards: int) -> None:
    graphs = odd_set().graphs
    firsts = np.cumsum([0, *(graph.num_nodes for graph in graphs)]).tolist()
    cuts = [cut_nodes(graph, num_shards=num_shards, order="random") for graph in graphs]
    joined = [
        join_edges(
            [shard_edges(graph, cut=cut, shard=shard) for graph, cut in zip(graphs, cuts, strict=True)],
            num_shards=num_shards,
        )
        for shard in range(num_shards)
    ]
    by_graph = [owned(cut, first) for cut, first in zip(cuts, firsts, strict=False)]
    own = [torch.cat([of_graph[shard] for of_graph in by_graph]) for shard in range(num_shards)]
    expected = {}
    for graph, first in zip(graphs, firsts, strict=False):
        expected |= in_neighbours(graph, first)
    assert neighbours(joined, own) == expected
