"""Edges with weights, times, types and features: merged, mirrored, stored, and turned with their columns."""

import dataclasses

import numpy as np
import pytest

from workers.data.build import build_dataset
from workers.data.edge_columns import EdgeColumns, from_edge_table
from workers.data.edges import from_edges, to_edges
from workers.data.features import DenseFeatures
from workers.data.graph import EDGE_COLUMNS, NO_TIME, NODE_COLUMNS, Graph
from workers.data.store import open_or_prepare
from workers.errors import DatasetInvalidError
from workers.mqgnn.sampling.csc import along, csc_of

SOURCES, TARGETS = np.array([3, 0, 0, 2, 0, 1, 0]), np.array([1, 1, 1, 2, 1, 0, 1])
COLUMNS = EdgeColumns(
    types=np.array([0, 1, 0, 0, 1, 0, 1], dtype=np.uint8),
    weights=np.array([1, 2, 4, 8, 16, 32, 64], dtype=np.float32),
    times=np.array([9, 5, 5, 5, 5, 7, 4]),
    features=np.arange(14, dtype=np.float32).reshape(7, 2),
)


def graph_of(columns: EdgeColumns = COLUMNS, *, directed: bool = True) -> Graph:
    (indptr, indices), found = from_edge_table(SOURCES, TARGETS, num_nodes=4, columns=columns, directed=directed)
    return Graph(
        indptr,
        indices,
        features=DenseFeatures(np.ones((4, 2), dtype=np.float32)),
        y=np.array([0, 1, 0, 1]),
        split=np.array([0, 0, 1, 2], dtype=np.int8),
        node_types=np.array([0, 1, 1, 0], dtype=np.uint8),
        node_times=np.array([3, NO_TIME, 5, 6]),
        **found.fields(),
    )


def test_an_edge_is_its_ends_its_type_and_its_time_and_those_given_twice_are_added_up():
    graph = graph_of()
    sources, targets = to_edges(graph.indptr, graph.indices)
    rows = [*zip(sources, targets, graph.edge_types, graph.edge_times, graph.edge_weights, strict=True)]
    assert rows == [(1, 0, 0, 7, 32), (0, 1, 0, 5, 4), (0, 1, 1, 4, 64), (0, 1, 1, 5, 2 + 16), (3, 1, 0, 9, 1)]
    assert graph.edge_features[3].tolist() == [2, 3]  # the first of the two that are one


def test_both_ways_carry_the_same():
    graph = graph_of(directed=False)
    sources, targets = to_edges(graph.indptr, graph.indices)
    columns = [graph.edge_types, graph.edge_times, graph.edge_weights]
    there = {(*row,) for row in zip(sources, targets, *columns, strict=True)}
    assert {(target, source, *rest) for source, target, *rest in there} == there
    assert len(there) == 2 * 5


def test_without_columns_the_edges_are_those_of_from_edges():
    (indptr, indices), columns = from_edge_table(SOURCES, TARGETS, num_nodes=4, columns=EdgeColumns())
    expected = from_edges(SOURCES, TARGETS, num_nodes=4)
    assert np.array_equal(indptr, expected.indptr)
    assert np.array_equal(indices, expected.indices)
    assert columns == EdgeColumns()


def test_weights_alone_merge_as_plain_edges_do():
    (indptr, indices), columns = from_edge_table(
        SOURCES, TARGETS, num_nodes=4, columns=EdgeColumns(weights=COLUMNS.weights), directed=True
    )
    expected = from_edges(SOURCES, TARGETS, num_nodes=4, directed=True)
    assert np.array_equal(indptr, expected.indptr)
    assert np.array_equal(indices, expected.indices)
    assert columns.weights.tolist() == [32, 2 + 4 + 16 + 64, 1]


def test_a_graph_with_all_columns_is_opened_as_it_was_built(tmp_path):
    names = {"edge_type_names": ("likes", "knows"), "node_type_names": ("a", "b")}
    built = build_dataset("columns", graphs=(graph_of(),), num_classes=2, **names)
    opened = open_or_prepare(tmp_path, key="columns", build=lambda: built)
    for name in (*EDGE_COLUMNS, *NODE_COLUMNS):
        found, expected = (getattr(dataset.graphs[0], name) for dataset in (opened, built))
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    assert (opened.edge_type_names, opened.node_type_names) == tuple(names.values())
    plain = build_dataset("columns", graphs=(graph_of(),), num_classes=2)
    assert opened.fingerprint == built.fingerprint != plain.fingerprint


@pytest.mark.parametrize("name", [*EDGE_COLUMNS, *NODE_COLUMNS])
def test_a_column_of_another_length_is_refused(name):
    graph = dataclasses.replace(graph_of(), **{name: getattr(graph_of(), name)[1:]})
    with pytest.raises(DatasetInvalidError, match=name.replace("_", " ")):
        build_dataset("short", graphs=(graph,), num_classes=2)


@pytest.mark.parametrize(("name", "value"), [("edge_weights", -1), ("edge_weights", np.nan), ("edge_features", np.inf)])
def test_a_number_that_is_none_is_named_by_its_edge(name, value):
    graph = graph_of()
    getattr(graph, name)[2] = value
    with pytest.raises(DatasetInvalidError, match=r"edge 2 \(0 -> 1\) has a weight or a feature"):
        build_dataset("odd", graphs=(graph,), num_classes=2)


def test_edges_out_of_the_order_of_types_and_times_are_refused():
    graph = graph_of()
    graph.edge_times[2:4] = graph.edge_times[2:4][::-1].copy()
    with pytest.raises(DatasetInvalidError, match=r"edge 3 .* out of order or given twice"):
        build_dataset("odd", graphs=(graph,), num_classes=2)


def test_what_samplers_read_has_the_weights_and_times_and_turns_with_the_edges():
    graph = graph_of()
    csc = csc_of(graph)
    assert csc.weights.tolist() == graph.edge_weights.tolist()
    assert csc.times.tolist() == graph.edge_times.tolist()
    turned = along(graph, direction="out")
    sources, targets = to_edges(turned.indptr, turned.indices)
    rows = {*zip(targets, sources, turned.edge_types, turned.edge_times, turned.edge_weights, strict=True)}
    assert rows == {(1, 0, 0, 7, 32), (0, 1, 0, 5, 4), (0, 1, 1, 4, 64), (0, 1, 1, 5, 18), (3, 1, 0, 9, 1)}
    assert turned.edge_features.shape == (5, 2)
