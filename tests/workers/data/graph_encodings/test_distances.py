import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.data.edges import Adjacency, from_edges
from workers.data.features import DenseFeatures
from workers.data.graph import Graph
from workers.data.graph_encodings.distances import distance_buckets


def graph_of(adjacency: Adjacency) -> Graph:
    num_nodes = len(adjacency.indptr) - 1
    return Graph(
        *adjacency,
        features=DenseFeatures(np.zeros((num_nodes, 1), dtype=np.float32)),
        y=np.zeros(num_nodes, dtype=np.int64),
        split=np.zeros(num_nodes, dtype=np.int8),
    )


def buckets_by_networkx(graph: Graph, *, max_distance: int) -> np.ndarray:
    reference = networkx.Graph()
    reference.add_nodes_from(range(graph.num_nodes))
    for target in range(graph.num_nodes):
        sources = graph.indices[graph.indptr[target] : graph.indptr[target + 1]]
        reference.add_edges_from((int(source), target) for source in sources)
    buckets = np.full((graph.num_nodes, graph.num_nodes), max_distance + 1)
    for source, hops in networkx.all_pairs_shortest_path_length(reference, cutoff=max_distance):
        for target, distance in hops.items():
            buckets[source, target] = distance
    return buckets


@given(
    num_nodes=st.integers(1, 25),
    mean_degree=st.sampled_from([0.0, 0.5, 1.5, 4.0]),
    max_distance=st.sampled_from([0, 1, 2, 4, 254]),
    directed=st.booleans(),
    seed=st.integers(0, 10_000),
)
@settings(deadline=None, max_examples=150)
def test_buckets_equal_shortest_paths_of_the_undirected_view(num_nodes, mean_degree, max_distance, directed, seed):
    generator = np.random.default_rng(seed)
    ends = generator.integers(0, num_nodes, size=(2, int(num_nodes * mean_degree)))
    graph = graph_of(from_edges(*ends, num_nodes=num_nodes, directed=directed))
    buckets = distance_buckets(graph, rows=range(num_nodes), max_distance=max_distance)
    assert buckets.dtype == np.uint8
    assert np.array_equal(buckets, buckets_by_networkx(graph, max_distance=max_distance))


def test_a_self_loop_does_not_change_a_distance():
    # built by hand, because from_edges leaves self loops out
    looped = graph_of(Adjacency(np.array([0, 2, 3]), np.array([0, 1, 0], dtype=np.int32)))
    assert distance_buckets(looped, rows=range(2), max_distance=3).tolist() == [[0, 1], [1, 0]]


def test_a_single_node_is_at_distance_zero_from_itself():
    alone = graph_of(from_edges(np.array([]), np.array([]), num_nodes=1))
    assert distance_buckets(alone, rows=range(1), max_distance=2).tolist() == [[0]]


def test_isolated_nodes_see_everything_in_the_far_bucket():
    apart = graph_of(from_edges(np.array([]), np.array([]), num_nodes=3))
    assert distance_buckets(apart, rows=np.array([1]), max_distance=2).tolist() == [[3, 0, 3]]


def test_the_rows_asked_are_the_rows_given_in_that_order(path_graph):
    everything = distance_buckets(path_graph, rows=range(4), max_distance=4)
    some = distance_buckets(path_graph, rows=np.array([3, 0, 0]), max_distance=4)
    assert np.array_equal(some, everything[[3, 0, 0]])
    assert distance_buckets(path_graph, rows=range(0), max_distance=4).shape == (0, 4)


def test_64_bit_indices_give_the_same_buckets(path_graph):
    wide = graph_of(Adjacency(path_graph.indptr, path_graph.indices.astype(np.int64)))
    narrow = graph_of(Adjacency(path_graph.indptr, path_graph.indices))
    one, other = (distance_buckets(graph, rows=range(4), max_distance=2) for graph in (wide, narrow))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("rows", "max_distance", "said"), [(range(4), 255, "one byte"), ([4], 2, "found 4..4"), ([-1], 2, "found -1..-1")]
)
def test_what_cannot_be_answered_is_refused(path_graph, rows, max_distance, said):
    with pytest.raises(ValueError, match=said):
        distance_buckets(path_graph, rows=rows, max_distance=max_distance)
