"""A user's own set of graphs: a folder with graphs, nodes and edges, as CSV or Parquet.

    graphs   id,label[,split]     a class (numbers or words) or a number to predict; train, val, test or empty
    nodes    id,graph,...         and, if wanted, type, time; every other column is a feature
    edges    source,target        ids of two nodes of one graph; further columns as in ``own``

Without a split column the labelled graphs are split 60/20/20. Faults come in one message, each with file and row.
"""

from pathlib import Path

import numpy as np

from workers.data.build import build_dataset
from workers.data.features import DenseFeatures, compact
from workers.data.graph import NO_LABEL, NO_SPLIT, SPLIT_NAMES, TRAIN, GraphDataset, has_label
from workers.data.readers.faults import FaultList
from workers.data.readers.labels import read_targets
from workers.data.readers.many_graphs import cut_graphs, offsets_of
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
from workers.data.readers.own_files import EDGES, GRAPHS, NODES, SPLITS, find_table, read_table
from workers.data.readers.tables import Table, Wanted
from workers.data.splits import SPLIT_NOTE, stratified_split

_WANTED_GRAPHS = Wanted(("id", "label"), also_text=("split",))
_WANTED_NODES = Wanted(("id", "graph"), also_text=("type", "time"))


def read_own_graphs(folder: Path, *, directed: bool = False) -> GraphDataset:
    """Read the set. Raises ``DatasetInvalidError`` with file and row of each fault."""
    faults = FaultList(folder)
    graphs = read_table(folder, GRAPHS, wanted=_WANTED_GRAPHS, faults=faults)
    nodes = read_table(folder, NODES, wanted=_WANTED_NODES, faults=faults)
    edges = read_table(folder, EDGES, wanted=WANTED_EDGES, faults=faults)
    splits = find_table(folder, SPLITS)
    if splits is not None:
        faults.add(splits.name, row=None, text=f"parts of whole graphs stand in the column split of the {GRAPHS}")
    if graphs is None or nodes is None or edges is None:
        faults.raise_if_any()
    tables = [table for table in (graphs, nodes, edges) if table is not None]
    assert len(tables) == 3, "a table is missing only with a fault"
    graphs, nodes, edges = tables
    graph_ids, node_ids = unique_ids(graphs, faults=faults), unique_ids(nodes, faults=faults)
    labels = read_targets(graphs, faults=faults)
    node_types, node_times, node_type_names = read_node_columns(nodes, faults=faults)
    features = read_features(nodes, besides=(*NODE_WORDS, "graph"), faults=faults, types=node_types)
    graph_of = places_of(nodes, "graph", ids=graph_ids, of=graphs, faults=faults)
    ends, columns, edge_type_names = read_edges(edges, ids=node_ids, nodes=nodes, faults=faults)
    _check_within(edges, ends=ends, graph_of=graph_of, faults=faults)
    sizes = np.bincount(graph_of[graph_of >= 0], minlength=len(graphs))
    _check_nodes(graphs, nodes=nodes, sizes=sizes, faults=faults)
    split = _read_split(graphs, y=labels.y, faults=faults)
    faults.raise_if_any()
    order = np.argsort(graph_of, kind="stable")  # nodes of one graph need not stand together
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return build_dataset(
        folder.name,
        graphs=cut_graphs(
            node_offsets=offsets_of(sizes),
            sources=place[ends[0]],
            targets=place[ends[1]],
            features=compact(DenseFeatures(features.matrix[order])),
            y=labels.y,
            split=split,
            columns=columns,
            node_columns={
                "node_types": None if node_types is None else node_types[order],
                "node_times": None if node_times is None else node_times[order],
            },
            directed=directed,
        ),
        num_classes=labels.num_classes,
        class_names=labels.class_names,
        edge_type_names=edge_type_names,
        node_type_names=node_type_names,
        notes=(
            edge_note(edges, ends=ends, directed=directed),
            "features as given, not normalised",
            f"split of {graphs.path.name}" if "split" in graphs.header else SPLIT_NOTE.replace("nodes", "graphs"),
        ),
        level="graph",
        task=labels.task,
    )


def _check_within(
    edges: Table, *, ends: tuple[np.ndarray, np.ndarray], graph_of: np.ndarray, faults: FaultList
) -> None:
    known = (ends[0] >= 0) & (ends[1] >= 0)
    faults.add_each(
        edges.path.name,
        bad=known & (graph_of[ends[0]] != graph_of[ends[1]]),
        rows=edges.rows,
        describe=lambda record: (
            f"the edge {edges.text('source')[record].as_py()!r} -> {edges.text('target')[record].as_py()!r} joins nodes"
            " of two graphs; edges stay within one"
        ),
    )


def _check_nodes(graphs: Table, *, nodes: Table, sizes: np.ndarray, faults: FaultList) -> None:
    faults.add_each(
        graphs.path.name,
        bad=sizes == 0,
        rows=graphs.rows,
        describe=lambda record: f"graph {graphs.text('id')[record].as_py()!r} has no node in {nodes.path.name}",
    )


def _read_split(graphs: Table, *, y: np.ndarray, faults: FaultList) -> np.ndarray:
    """int8 [graphs] of the column split, or our own split where there is none."""
    import pyarrow
    import pyarrow.compute

    known = has_label(y)
    if "split" not in graphs.header:
        return stratified_split(y if y.ndim == 1 else np.where(known, 0, NO_LABEL))
    words = graphs.text("split")
    parts = np.asarray(pyarrow.compute.index_in(words, value_set=pyarrow.array(SPLIT_NAMES)).fill_null(NO_SPLIT))
    empty = np.asarray(pyarrow.compute.equal(words, ""))
    faults.add_each(
        graphs.path.name,
        bad=(parts == NO_SPLIT) & ~empty,
        rows=graphs.rows,
        describe=lambda record: f"split {words[record].as_py()!r} is none of {', '.join(SPLIT_NAMES)}, or empty",
    )
    faults.add_each(
        graphs.path.name,
        bad=(parts != NO_SPLIT) & ~known,
        rows=graphs.rows,
        describe=lambda record: f"a graph in {words[record].as_py()!r} needs a label",
    )
    if not (parts == TRAIN).any():
        faults.add(graphs.path.name, row=None, text="the training mask is empty: no row says 'train'")
    return parts.astype(np.int8)
