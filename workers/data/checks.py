"""What a data set must keep before any rank sees it. The first thing that breaks a rule is named: node, edge, feature.

Everything that enters the store passes here, so those who open it need not ask again. Faults in a user's own files are
found earlier, with file and row (``workers.data.readers.own``).
"""

import numpy as np

from workers.data.edges import targets_of
from workers.data.graph import (
    EDGE_COLUMNS,
    NO_LABEL,
    NO_SPLIT,
    NODE_COLUMNS,
    SPLIT_NAMES,
    TEST,
    TRAIN,
    Graph,
    GraphDataset,
    Level,
    Task,
    has_label,
)
from workers.errors import DatasetInvalidError

_COLUMNS = (*EDGE_COLUMNS, *NODE_COLUMNS)


def check_dataset(dataset: GraphDataset) -> None:
    """Every graph sound, the same features everywhere, at least one training node. Raises ``DatasetInvalidError``."""
    if not dataset.graphs or not dataset.num_nodes:
        raise DatasetInvalidError(f"{dataset.name}: the data set has no node; give at least one graph with nodes")
    many = len(dataset.graphs) > 1
    for number, graph in enumerate(dataset.graphs):
        name = f"{dataset.name}, graph {number}" if many else dataset.name
        check_graph(graph, num_classes=dataset.num_classes, name=name, level=dataset.level, task=dataset.task)
        if graph.features.num_features != dataset.num_features:
            raise DatasetInvalidError(
                f"{name}: has {graph.features.num_features} features, the data set {dataset.num_features}"
            )
        if graph.columns(_COLUMNS).keys() != dataset.graphs[0].columns(_COLUMNS).keys():
            raise DatasetInvalidError(f"{name}: carries other columns of edges or nodes than the first graph")
    if not any((graph.split == TRAIN).any() for graph in dataset.graphs):
        raise DatasetInvalidError(
            f"{dataset.name}: the training mask is empty, so there is nothing to learn from:"
            f" put {dataset.level}s into 'train'"
        )


def check_graph(
    graph: Graph, *, num_classes: int, name: str = "graph", level: Level = "node", task: Task = "classes"
) -> None:
    """Hold one graph to its rules. Raises ``DatasetInvalidError`` that names the first node or edge that breaks one."""
    _check_lengths(graph, name=name, level=level)
    _check_edges(graph, name=name)
    _check_parts(graph, name=name, row="node" if level == "node" else "row")
    if task == "classes":
        _check_classes(graph, num_classes=num_classes, name=name)
    else:
        _check_numbers(graph, num_outputs=num_classes, name=name)
    place = graph.features.first_not_finite()
    if place is not None:
        node, feature = place
        raise DatasetInvalidError(
            f"{name}: feature {feature} of node {node} is not finite (NaN or infinite):"
            " fill it in or leave the node out",
            node=node,
            feature=feature,
        )


def _check_lengths(graph: Graph, *, name: str, level: Level) -> None:
    found = {"features": graph.features.num_rows}
    if level == "node":
        found |= {"labels": len(graph.y), "split": len(graph.split)}
    elif (len(graph.y), len(graph.split)) != (1, 1):
        raise DatasetInvalidError(f"{name}: one graph but {len(graph.y)} labels and {len(graph.split)} parts")
    for what, length in found.items():
        if length != graph.num_nodes:
            raise DatasetInvalidError(f"{name}: {graph.num_nodes} nodes but {length} rows of {what}")
    for names, size, rows in ((EDGE_COLUMNS, graph.num_edges, "edges"), (NODE_COLUMNS, graph.num_nodes, "nodes")):
        for column, values in graph.columns(names).items():
            if len(values) != size:
                raise DatasetInvalidError(f"{name}: {size} {rows} but {len(values)} {column.replace('_', ' ')}")


def _check_edges(graph: Graph, *, name: str) -> None:
    indptr, indices = graph.indptr, graph.indices
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise DatasetInvalidError(f"{name}: indptr must rise from 0 to the {len(indices)} edges; rebuild it from edges")
    outside = np.flatnonzero((indices < 0) | (indices >= graph.num_nodes))
    if len(outside):
        edge = int(outside[0])
        source, target = int(indices[edge]), _column_of(indptr, edge)
        raise DatasetInvalidError(
            f"{name}: edge {edge} ({source} -> {target}) names node {source}, which does not exist:"
            f" the nodes are 0..{graph.num_nodes - 1}",
            edge=edge,
            node=source,
        )
    keys = (targets_of(indptr), indices, graph.edge_types, graph.edge_times)
    unsorted = np.flatnonzero(~_rises(*(key for key in keys if key is not None)))
    if len(unsorted):
        edge = int(unsorted[0]) + 1
        raise DatasetInvalidError(
            f"{name}: edge {edge} ({indices[edge]} -> {_column_of(indptr, edge)}) is out of order or given twice:"
            " build the graph with from_edges",
            edge=edge,
        )
    _check_finite(graph, name=name)


def _rises(*keys: np.ndarray) -> np.ndarray:
    """Bool [n - 1]: whether each row of the columns ``keys``, the first counting most, is above the one before."""
    above = np.zeros(len(keys[0]) - 1 if len(keys[0]) else 0, dtype=bool)
    for key in reversed(keys):
        above = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & above)
    return above


def _check_finite(graph: Graph, *, name: str) -> None:
    sound = np.ones(graph.num_edges, dtype=bool)
    if graph.edge_weights is not None:
        sound &= np.isfinite(graph.edge_weights) & (graph.edge_weights >= 0)
    if graph.edge_features is not None:
        sound &= np.isfinite(graph.edge_features).all(axis=1)
    if not sound.all():
        edge = int(np.flatnonzero(~sound)[0])
        raise DatasetInvalidError(
            f"{name}: edge {edge} ({graph.indices[edge]} -> {_column_of(graph.indptr, edge)}) has a weight or a feature"
            " that is no finite number, or a weight below 0",
            edge=edge,
        )


def _column_of(indptr: np.ndarray, edge: int) -> int:
    return int(np.searchsorted(indptr, edge, side="right")) - 1


def _check_parts(graph: Graph, *, name: str, row: str) -> None:
    strange = np.flatnonzero((graph.split < NO_SPLIT) | (graph.split > TEST))
    if len(strange):
        node = int(strange[0])
        raise DatasetInvalidError(
            f"{name}: {row} {node} is in part {graph.split[node]}; parts are 0 train, 1 val, 2 test, -1 none", node=node
        )
    unlabelled = np.flatnonzero((graph.split != NO_SPLIT) & ~has_label(graph.y))
    if len(unlabelled):
        node = int(unlabelled[0])
        raise DatasetInvalidError(
            f"{name}: {row} {node} is in {SPLIT_NAMES[graph.split[node]]!r} but has no label:"
            " label it or take it out of the split",
            node=node,
        )


def _check_classes(graph: Graph, *, num_classes: int, name: str) -> None:
    outside = np.flatnonzero((graph.y != NO_LABEL) & ((graph.y < 0) | (graph.y >= num_classes)))
    if len(outside):
        node = int(outside[0])
        raise DatasetInvalidError(
            f"{name}: node {node} has the label {graph.y[node]}, but the classes are 0..{num_classes - 1}"
            f" (and {NO_LABEL} for no label)",
            node=node,
            label=int(graph.y[node]),
        )


def _check_numbers(graph: Graph, *, num_outputs: int, name: str) -> None:
    if graph.y.shape[1:] != (num_outputs,) or np.isinf(graph.y).any():
        raise DatasetInvalidError(
            f"{name}: labels must be finite numbers in {num_outputs} columns (NaN for not known);"
            f" found the shape {graph.y.shape}"
        )
