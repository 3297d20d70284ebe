"""Which form of the distance index is smaller, and how many near pairs any shard can have."""

import numpy as np
import pytest

from tests.distributed.odd_graphs import STAR, build_graph, random_edges
from workers.data.graph import Graph
from workers.data.graph_encodings.distances import pairs_within
from workers.data.graph_encodings.index_form import heaviest_rows, is_near_form_smaller, mean_pairs_within


def ring(num_nodes: int) -> Graph:
    return build_graph(num_nodes, [(node, (node + 1) % num_nodes) for node in range(num_nodes)], seed=0)


def test_near_pairs_are_chosen_where_they_take_a_quarter_of_the_bytes_or_less() -> None:
    graph = ring(1200)
    # 2d + 1 nodes within reach: 4 * (5 * (2d + 1) + 8) <= 1200 up to d = 28
    assert is_near_form_smaller([graph], max_distance=28)
    assert not is_near_form_smaller([graph], max_distance=29)
    assert is_near_form_smaller([ring(5), graph], max_distance=2)  # judged by the largest


def test_small_graphs_stay_dense() -> None:
    assert not is_near_form_smaller([ring(1023)], max_distance=1)
    assert is_near_form_smaller([ring(1024)], max_distance=1)


def test_the_mean_of_a_small_graph_is_that_of_all_its_rows() -> None:
    assert mean_pairs_within(build_graph(10, STAR, seed=0), max_distance=1) == (10 + 9 * 2) / 10
    assert mean_pairs_within(build_graph(1, [], seed=0), max_distance=1) == 1


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4, 7, 8])
def test_no_shard_of_any_order_has_more_pairs_than_the_heaviest_rows(num_shards: int) -> None:
    graphs = [build_graph(10, STAR, seed=0), build_graph(61, random_edges(61, 90, seed=1), seed=1)]
    bound = heaviest_rows(graphs, max_distance=2)[num_shards.bit_length() - 1]
    for seed in range(5):
        held = 0
        for graph in graphs:
            order = np.random.default_rng(seed).permutation(graph.num_nodes)
            shards = np.array_split(order, num_shards)
            held += max(len(pairs_within(graph, rows=rows, max_distance=2).columns) for rows in shards)
        assert held <= bound
    everything = sum(len(pairs_within(graph, rows=range(graph.num_nodes), max_distance=2).columns) for graph in graphs)
    assert heaviest_rows(graphs, max_distance=2)[0] == everything
