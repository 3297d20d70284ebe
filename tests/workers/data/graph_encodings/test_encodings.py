"""Every encoding against brute force on odd graphs: isolated nodes, parts, stars, one node, one-way edges."""

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.data.graph_encodings.test_distances import graph_of
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures, compact
from workers.data.graph import Graph
from workers.data.graph_encodings.distances import count_pairs_within, distance_buckets, pairs_within
from workers.data.graph_encodings.edge_paths import edge_paths
from workers.data.graph_encodings.expander import expander_edges
from workers.data.graph_encodings.hops import hop_features
from workers.data.graph_encodings.laplacian import LARGEST_DENSE, laplacian_eigenvectors
from workers.data.graph_encodings.stored import stored
from workers.data.graph_encodings.walks import return_probabilities
from workers.data.paths import DataPaths


def random_graph(num_nodes: int, *, mean_degree: float, seed: int, directed: bool = False) -> Graph:
    ends = np.random.default_rng(seed).integers(0, num_nodes, size=(2, int(num_nodes * mean_degree)))
    return graph_of(from_edges(*ends, num_nodes=num_nodes, directed=directed))


def dense(graph: Graph) -> np.ndarray:
    """The adjacency of the undirected view."""
    adjacency = np.zeros((graph.num_nodes, graph.num_nodes))
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    adjacency[graph.indices, targets] = adjacency[targets, graph.indices] = 1
    return adjacency


ODD = [
    random_graph(1, mean_degree=0, seed=0),
    random_graph(7, mean_degree=0, seed=0),
    random_graph(130, mean_degree=1.2, seed=1),
    random_graph(40, mean_degree=3, seed=2, directed=True),
    graph_of(from_edges(np.zeros(9, dtype=np.int64), np.arange(1, 10), num_nodes=12)),
]
odd_graphs = pytest.mark.parametrize("graph", ODD, ids=["one node", "no edge", "parts", "one-way", "star and rest"])


@given(
    num_nodes=st.integers(1, 150),
    mean_degree=st.sampled_from([0.0, 0.7, 2.0, 20.0]),
    max_distance=st.integers(0, 5),
    num_threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 10_000),
)
@settings(deadline=None, max_examples=40)
def test_the_pairs_within_reach_are_those_that_the_dense_index_says(
    num_nodes, mean_degree, max_distance, num_threads, seed
):
    graph = random_graph(num_nodes, mean_degree=mean_degree, seed=seed)
    rows = np.random.default_rng(seed).permutation(num_nodes)[: num_nodes // 2 + 1]
    asked = {"rows": rows, "max_distance": max_distance, "num_threads": num_threads}
    buckets, pairs = distance_buckets(graph, **asked), pairs_within(graph, **asked)
    near_rows, near_columns = np.nonzero(buckets <= max_distance)
    assert np.array_equal(np.repeat(np.arange(len(rows)), np.diff(pairs.indptr)), near_rows)
    assert np.array_equal(pairs.columns, near_columns)
    assert np.array_equal(pairs.buckets, buckets[near_rows, near_columns])
    assert np.array_equal(count_pairs_within(graph, **asked), np.diff(pairs.indptr))
    order = np.random.default_rng(seed + 1).permutation(num_nodes)
    placed = pairs_within(graph, **asked, place=np.argsort(order))
    near_rows, near_places = np.nonzero(buckets[:, order] <= max_distance)
    assert np.array_equal(placed.indptr, pairs.indptr)
    assert np.array_equal(placed.columns, near_places)
    assert np.array_equal(placed.buckets, buckets[:, order][near_rows, near_places])


@odd_graphs
@pytest.mark.parametrize("k", [1, 4, 200])
def test_eigenvectors_satisfy_their_equation_and_come_in_ascending_order(graph, k):
    values, vectors = laplacian_eigenvectors(graph, k=k)
    adjacency = dense(graph)
    scale = np.where(adjacency.sum(0) > 0, 1 / np.sqrt(np.maximum(adjacency.sum(0), 1)), 0)
    laplacian = np.diag((adjacency.sum(0) > 0) * 1.0) - scale[:, None] * adjacency * scale
    num_parts = networkx.number_connected_components(networkx.from_numpy_array(adjacency))
    found = min(k, graph.num_nodes - num_parts)
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-9)
    np.testing.assert_allclose(vectors[:, :found].T @ vectors[:, :found], np.eye(found), atol=1e-9)
    assert not vectors[:, found:].any()
    spectrum = np.sort(np.linalg.eigvalsh(laplacian))[graph.num_nodes - (graph.num_nodes - num_parts) :]
    np.testing.assert_allclose(values[:found], spectrum[:found], atol=1e-9)


@pytest.mark.parametrize("kind", ["random", "path"])
def test_eigenvectors_of_larger_graphs_are_those_of_the_dense_solver(kind):
    num_nodes = LARGEST_DENSE + 50
    graph = random_graph(num_nodes, mean_degree=4, seed=3)
    if kind == "path":  # eigenvalues crowd at 0: Lanczos gives up, the factorisation takes over
        graph = graph_of(from_edges(np.arange(num_nodes - 1), np.arange(1, num_nodes), num_nodes=num_nodes))
    values, vectors = laplacian_eigenvectors(graph, k=6)
    adjacency = dense(graph)
    scale = 1 / np.sqrt(np.maximum(adjacency.sum(0), 1))
    laplacian = np.diag((adjacency.sum(0) > 0) * 1.0) - scale[:, None] * adjacency * scale
    np.testing.assert_allclose(laplacian @ vectors, vectors * values, atol=1e-7)
    num_parts = networkx.number_connected_components(networkx.from_numpy_array(adjacency))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(laplacian)[num_parts : num_parts + 6], atol=1e-9)
    again = laplacian_eigenvectors(graph, k=6)
    assert np.array_equal(vectors, again.vectors)


def test_the_largest_entry_of_an_eigenvector_is_positive():
    vectors = laplacian_eigenvectors(ODD[2], k=5).vectors
    assert (vectors[np.abs(vectors).argmax(axis=0), np.arange(5)] > 0).all()


@odd_graphs
@pytest.mark.parametrize("num_steps", [1, 2, 5, 8])
def test_return_probabilities_are_diagonals_of_powers(graph, num_steps):
    adjacency = dense(graph)
    walk = adjacency / np.maximum(adjacency.sum(1, keepdims=True), 1)
    expected = [np.diag(np.linalg.matrix_power(walk, step)) for step in range(1, num_steps + 1)]
    found = return_probabilities(graph, num_steps=num_steps, num_threads=2)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-12)
    rows = np.arange(graph.num_nodes)[::-2]
    assert np.array_equal(return_probabilities(graph, num_steps=num_steps, rows=rows), found[rows])


@odd_graphs
@pytest.mark.parametrize("density", [0.02, 1.0])
def test_hop_features_are_powers_of_the_normalised_adjacency(graph, density):
    random = np.random.default_rng(0)
    matrix = (random.normal(size=(graph.num_nodes, 70)) * (random.random((graph.num_nodes, 70)) < density)).astype("f4")
    graph = Graph(graph.indptr, graph.indices, compact(DenseFeatures(matrix)), graph.y, graph.split)
    adjacency = dense(graph) + np.eye(graph.num_nodes)
    scale = 1 / np.sqrt(adjacency.sum(0))
    normalised = scale[:, None] * adjacency * scale
    expected = [np.linalg.matrix_power(normalised, hops) @ matrix for hops in range(4)]
    found = hop_features(graph, num_hops=3, num_threads=2)
    np.testing.assert_allclose(found, np.stack(expected, axis=1), atol=1e-5)
    assert np.array_equal(hop_features(graph, num_hops=3, rows=[0]), found[:1])


@odd_graphs
@pytest.mark.parametrize("max_distance", [1, 3])
def test_an_edge_path_is_as_long_as_the_distance(graph, max_distance):
    paths = edge_paths(graph, max_distance=max_distance)
    buckets = distance_buckets(graph, rows=range(graph.num_nodes), max_distance=max_distance)
    assert np.array_equal((paths > 0).sum(axis=2), np.where(buckets <= max_distance, buckets, 0))
    rows = np.arange(graph.num_nodes)[::-3]
    assert np.array_equal(edge_paths(graph, max_distance=max_distance, rows=rows), paths[rows])


def test_the_types_along_a_path_stand_in_the_order_of_its_edges():
    path = from_edges(np.arange(4), np.arange(1, 5), num_nodes=5)  # 0-1-2-3-4
    targets = np.repeat(np.arange(5), np.diff(path.indptr))
    graph = graph_of(path)
    typed = Graph(
        *path,
        features=graph.features,
        y=graph.y,
        split=graph.split,
        edge_types=np.minimum(path.indices, targets).astype(np.uint8),  # edge (i, i + 1) is of type i
    )
    paths = edge_paths(typed, max_distance=3)
    assert paths[0].tolist() == [[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 2, 3], [0, 0, 0]]
    assert paths[4, 1].tolist() == [4, 3, 2]


@pytest.mark.parametrize("degree", [2, 4, 6])
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5, 20, 301])
def test_an_expander_is_regular_connected_and_the_same_for_the_same_seed(num_nodes, degree):
    sources, targets = expander_edges(num_nodes, degree=degree, seed=1)
    adjacency = np.zeros((num_nodes, num_nodes), dtype=int)
    np.add.at(adjacency, (sources, targets), 1)
    assert adjacency.max(initial=0) <= 1
    assert not np.diag(adjacency).any()
    assert np.array_equal(adjacency, adjacency.T)
    assert networkx.is_connected(networkx.from_numpy_array(adjacency))
    if num_nodes <= degree + 1 or num_nodes > 3 * degree:
        assert (adjacency.sum(0) == min(degree, num_nodes - 1)).all()
    again = expander_edges(num_nodes, degree=degree, seed=1)
    assert np.array_equal(sources, again[0])
    other = expander_edges(301, degree=degree, seed=2)
    assert num_nodes < 301 or not np.array_equal(sources, other[0])


def test_an_encoding_is_computed_once_and_read_by_everyone_after(tmp_path):
    calls = []

    def encode(graph: Graph, *, hops: int) -> tuple[np.ndarray, np.ndarray]:
        calls.append(graph)
        return np.full((graph.num_nodes, 2), hops), graph.indptr

    paths = DataPaths(root=None, cache=tmp_path)
    for _ in range(2):
        found = stored(encode, ODD, paths=paths, hops=3, num_threads=2)
        assert len(calls) == len(ODD)
        for (filled, indptr), graph in zip(found, ODD, strict=True):
            assert np.array_equal(filled, np.full((graph.num_nodes, 2), 3))
            assert np.array_equal(indptr, graph.indptr)
    stored(encode, ODD, paths=paths, hops=4)
    stored(encode, ODD[:1], paths=paths, hops=3)
    assert len(calls) == 2 * len(ODD) + 1
    assert not list((tmp_path / "encodings").glob("*.partial"))


def test_an_encoding_that_fails_leaves_nothing_behind(tmp_path):
    paths = DataPaths(root=None, cache=tmp_path)
    with pytest.raises(ValueError, match="found k = 0"):
        stored(laplacian_eigenvectors, ODD, paths=paths, k=0)
    assert not list((tmp_path / "encodings").glob("*"))
    values, vectors = stored(laplacian_eigenvectors, ODD[3:4], paths=paths, k=3)[0]
    assert np.array_equal(vectors, laplacian_eigenvectors(ODD[3], k=3).vectors)
    assert values.shape == (3,)
