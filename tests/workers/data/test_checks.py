import dataclasses

import numpy as np
import pytest

from workers.data.build import build_dataset
from workers.data.checks import check_graph
from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.graph import Graph
from workers.errors import DatasetInvalidError


def changed(graph: Graph, field: str, place: int, value: float) -> Graph:
    array = getattr(graph, field).copy()
    array[place] = value
    return dataclasses.replace(graph, **{field: array})


def test_a_sound_graph_passes(path_graph):
    check_graph(path_graph, num_classes=2)


@pytest.mark.parametrize(
    ("field", "place", "value", "named"),
    [
        ("y", 2, 7, "node 2 has the label 7, but the classes are 0..1"),
        ("y", 2, -3, "node 2 has the label -3"),
        ("y", 0, -1, "node 0 is in 'train' but has no label"),
        ("split", 1, 3, "node 1 is in part 3"),
        ("indices", 3, 9, "edge 3 (9 -> 2) names node 9"),
        ("indices", 0, -1, "edge 0 (-1 -> 0) names node -1"),
        ("indices", 2, 0, "edge 2 (0 -> 1) is out of order or given twice"),
        ("indptr", 1, 4, "indptr must rise"),
        ("indptr", 4, 3, "indptr must rise"),
    ],
)
def test_the_first_thing_that_breaks_a_rule_is_named(path_graph, field, place, value, named):
    with pytest.raises(DatasetInvalidError) as caught:
        check_graph(changed(path_graph, field, place, value), num_classes=2, name="tiny")
    assert named in str(caught.value)
    assert str(caught.value).startswith("tiny: ")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_not_finite_is_named_by_node_and_feature(path_graph, value):
    matrix = path_graph.features.matrix.copy()
    matrix[2, 1] = value
    with pytest.raises(DatasetInvalidError, match="feature 1 of node 2 is not finite"):
        check_graph(dataclasses.replace(path_graph, features=DenseFeatures(matrix)), num_classes=2)


def test_a_sparse_feature_that_is_not_finite_is_named_alike(path_graph):
    features = SparseFeatures(
        indptr=np.array([0, 1, 1, 2, 3]),
        columns=np.array([0, 1, 0], dtype=np.int32),
        values=np.array([1, np.nan, 2], dtype=np.float32),
        num_features=2,
    )
    with pytest.raises(DatasetInvalidError, match="feature 1 of node 2 is not finite"):
        check_graph(dataclasses.replace(path_graph, features=features), num_classes=2)


@pytest.mark.parametrize("field", ["y", "split"])
def test_every_node_needs_a_row_of_everything(path_graph, field):
    short = dataclasses.replace(path_graph, **{field: getattr(path_graph, field)[:-1]})
    with pytest.raises(DatasetInvalidError, match="4 nodes but 3 rows of"):
        check_graph(short, num_classes=2)


def test_an_empty_training_mask_is_refused(path_graph):
    with pytest.raises(DatasetInvalidError, match="the training mask is empty"):
        build_dataset("tiny", graphs=(changed(path_graph, "split", 0, -1),), num_classes=2)


def test_the_faulty_graph_among_many_is_named(path_graph):
    with pytest.raises(DatasetInvalidError, match="tiny, graph 1: node 2 has the label 7"):
        build_dataset("tiny", graphs=(path_graph, changed(path_graph, "y", 2, 7)), num_classes=2)


def test_a_set_without_graphs_is_refused():
    with pytest.raises(DatasetInvalidError, match="no node"):
        build_dataset("tiny", graphs=(), num_classes=2)


def test_the_graphs_of_a_set_share_their_features(path_graph):
    wider = dataclasses.replace(path_graph, features=DenseFeatures(np.zeros((4, 3), dtype=np.float32)))
    with pytest.raises(DatasetInvalidError, match="graph 1: has 3 features, the data set 2"):
        build_dataset("tiny", graphs=(path_graph, wider), num_classes=2)


@pytest.mark.parametrize(("field", "place", "value"), [("y", 2, 1), ("split", 3, 2)])
def test_the_fingerprint_changes_with_the_content_and_not_with_the_name(path_graph, field, place, value):
    one = build_dataset("one", graphs=(path_graph,), num_classes=2)
    same = build_dataset("same", graphs=(path_graph,), num_classes=2, notes=("read again",))
    other = build_dataset("one", graphs=(changed(path_graph, field, place, value),), num_classes=2)
    assert one.fingerprint == same.fingerprint != other.fingerprint
