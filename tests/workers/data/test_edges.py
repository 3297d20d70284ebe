import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.data.edges import from_edges, index_dtype, to_edges
from workers.errors import DatasetInvalidError

EDGE_LISTS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
)


def columns(edges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(EDGE_LISTS, st.booleans())
@settings(deadline=None)
def test_in_neighbours_are_the_sources_of_the_edges_that_end_in_a_node(case, directed):
    num_nodes, edges = case
    indptr, indices = from_edges(*columns(edges), num_nodes=num_nodes, directed=directed)
    wanted = set(edges) if directed else set(edges) | {(target, source) for source, target in edges}
    for node in range(num_nodes):
        in_neighbours = indices[indptr[node] : indptr[node + 1]].tolist()
        assert in_neighbours == sorted(source for source, target in wanted if target == node and source != node)


@given(EDGE_LISTS, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_edge_list_does_not_matter(case, random):
    num_nodes, edges = case
    shuffled = random.sample(edges, len(edges))
    one, other = (from_edges(*columns(order), num_nodes=num_nodes) for order in (edges, shuffled))
    assert np.array_equal(one.indptr, other.indptr)
    assert np.array_equal(one.indices, other.indices)


def test_a_directed_chain_hears_only_from_behind():
    indptr, indices = from_edges(*columns([(0, 1), (1, 2)]), num_nodes=3, directed=True)
    assert indptr.tolist() == [0, 0, 1, 2]
    assert indices.tolist() == [0, 1]


def test_isolated_nodes_have_their_row_and_no_neighbour():
    indptr, indices = from_edges(*columns([]), num_nodes=5)
    assert indptr.tolist() == [0] * 6
    assert len(indices) == 0


def test_to_edges_is_the_inverse():
    chain = from_edges(*columns([(2, 0), (0, 1), (1, 2)]), num_nodes=3, directed=True)
    again = from_edges(*to_edges(*chain), num_nodes=3, directed=True)
    assert np.array_equal(chain.indices, again.indices)
    assert np.array_equal(chain.indptr, again.indptr)


@pytest.mark.parametrize(
    ("num_nodes", "num_edges", "dtype"),
    [
        (10, 10, np.int32),
        (2**31 - 1, 2**31 - 1, np.int32),
        (10, 2**31, np.int64),
        (2**31, 10, np.int64),
        (10**12, 10**15, np.int64),
    ],
)
def test_indices_become_64_bit_as_soon_as_nodes_or_edges_need_it(num_nodes, num_edges, dtype):
    assert index_dtype(num_nodes, num_edges) == dtype


@pytest.mark.parametrize(
    ("sources", "targets", "named"),
    [
        ([0, 1, 5], [1, 2, 0], "edge 2 (5 -> 0) names node 5"),
        ([0, 1, 2], [1, 3, 9], "edge 1 (1 -> 3) names node 3"),
        ([0, -7], [1, 1], "edge 1 (-7 -> 1) names node -7"),
        (np.array([0, 2**31 + 5]).astype(np.int32), [1, 1], "int32 overflow"),
        (
            np.array([0, 2**63 + 1], dtype=np.uint64),
            np.array([1, 1], dtype=np.uint64),
            "names node 9223372036854775809",
        ),
        (np.array([0.5]), np.array([1.0]), "whole numbers"),
        ([0, 1], [1], "2 sources and 1 targets"),
    ],
)
def test_an_edge_that_names_no_node_is_refused_by_name(sources, targets, named):
    with pytest.raises(DatasetInvalidError) as caught:
        from_edges(np.asarray(sources), np.asarray(targets), num_nodes=3)
    assert named in str(caught.value)
