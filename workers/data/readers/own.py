"""A user's own graph: tables of edges, nodes and, if wanted, splits, as CSV or Parquet (many: ``own_graphs``).

    edges    source,target     and, if wanted, type, weight, time; every other column is a feature of edges
    nodes    id,label,...      and, if wanted, type, time; every other column is a feature; an empty label (or -1)
                               means not known
    splits   id,split          train, val or test; nodes that are not listed are in no part

Ids and types are any text, times whole numbers. Labels are all class numbers 0..C-1 without a gap, or all words. Edges
are taken both ways unless asked otherwise. Without splits the labelled nodes are split 60/20/20. Faults of all files
come in one message, each with file and row.
"""

from pathlib import Path
from typing import Any

import numpy as np

from workers.data.build import build_dataset
from workers.data.edge_columns import from_edge_table
from workers.data.features import compact
from workers.data.graph import NO_LABEL, NO_SPLIT, SPLIT_NAMES, TRAIN, Graph, GraphDataset
from workers.data.readers.faults import FaultList
from workers.data.readers.labels import read_labels
from workers.data.readers.own_columns import (
    NODE_WORDS,
    WANTED_EDGES,
    edge_note,
    places_of,
    read_edges,
    read_features,
    read_node_columns,
    unique_ids,
)
from workers.data.readers.own_files import EDGES, NODES, SPLITS, find_table, read_table
from workers.data.readers.tables import Table, Wanted
from workers.data.splits import SPLIT_NOTE, stratified_split

_WANTED_NODES = Wanted(("id", "label"), also_text=("type", "time"))
_WANTED_SPLITS = Wanted(("id", "split"), only_required=True)


def read_own_graph(folder: Path, *, directed: bool = False) -> GraphDataset:
    """Read one graph. Raises ``DatasetInvalidError`` with file and row of each fault."""
    faults = FaultList(folder)
    nodes = read_table(folder, NODES, wanted=_WANTED_NODES, faults=faults)
    edges = read_table(folder, EDGES, wanted=WANTED_EDGES, faults=faults)
    splits = read_table(folder, SPLITS, wanted=_WANTED_SPLITS, faults=faults)
    if nodes is None:
        faults.raise_if_any()
    assert nodes is not None, "a table is missing only with a fault"
    ids = unique_ids(nodes, faults=faults)
    labels = read_labels(nodes, faults=faults)
    node_types, node_times, node_type_names = read_node_columns(nodes, faults=faults)
    features = read_features(nodes, besides=NODE_WORDS, faults=faults, types=node_types)
    ends, columns, edge_type_names = read_edges(edges, ids=ids, nodes=nodes, faults=faults)
    split = _read_split(splits, ids=ids, nodes=nodes, y=labels.y, faults=faults)
    if edges is not None and np.array_equal(*ends):
        text = "every edge leads from a node to itself, so no two nodes are joined"
        faults.add(edges.path.name, row=None, text=text)
    faults.raise_if_any()
    assert edges is not None, "a table is missing only with a fault"
    adjacency, columns = from_edge_table(*ends, num_nodes=len(ids), columns=columns, directed=directed)
    graph = Graph(
        adjacency.indptr,
        adjacency.indices,
        features=compact(features),
        y=labels.y,
        split=split,
        node_types=node_types,
        node_times=node_times,
        **columns.fields(),
    )
    split_file = find_table(folder, SPLITS)
    return build_dataset(
        folder.name,
        graphs=(graph,),
        num_classes=labels.num_classes,
        class_names=labels.class_names,
        edge_type_names=edge_type_names,
        node_type_names=node_type_names,
        notes=(
            edge_note(edges, ends=ends, directed=directed),
            "features as given, not normalised",
            SPLIT_NOTE if split_file is None else f"split of {split_file.name}",
        ),
    )


def _read_split(splits: Table | None, *, ids: Any, nodes: Table, y: np.ndarray, faults: FaultList) -> np.ndarray:
    """int8 [N] of the table of splits, or our own split where there is none."""
    import pyarrow
    import pyarrow.compute

    if splits is None:
        return stratified_split(y)
    places = places_of(splits, "id", ids=ids, of=nodes, faults=faults)
    words = splits.text("split")
    parts = np.asarray(pyarrow.compute.index_in(words, value_set=pyarrow.array(SPLIT_NAMES)).fill_null(NO_SPLIT))
    faults.add_each(
        splits.path.name,
        bad=parts == NO_SPLIT,
        rows=splits.rows,
        describe=lambda record: f"split {words[record].as_py()!r} is none of {', '.join(SPLIT_NAMES)}",
    )
    split = np.full(len(y), NO_SPLIT, dtype=np.int8)
    listed = np.bincount(places[places >= 0], minlength=len(y))
    faults.add_each(
        splits.path.name,
        bad=(places >= 0) & (listed[places] > 1),
        rows=splits.rows,
        describe=lambda record: f"id {ids[int(places[record])].as_py()!r} is listed {listed[places[record]]} times",
    )
    faults.add_each(
        splits.path.name,
        bad=(places >= 0) & (y[places] == NO_LABEL),
        rows=splits.rows,
        describe=lambda record: f"node {ids[int(places[record])].as_py()!r} has no label, so it can be in no part",
    )
    if not (parts == TRAIN).any():
        faults.add(splits.path.name, row=None, text="the training mask is empty: no row says 'train'")
    split[places[places >= 0]] = parts[places >= 0]
    return split
