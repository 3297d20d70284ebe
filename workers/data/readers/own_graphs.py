"""A user's own set of graphs: a folder with graphs.csv, nodes.csv and edges.csv.

    graphs.csv   id,label[,split]     a class (numbers or words) or a number to predict; train, val, test or empty
    nodes.csv    id,graph,...         every other column is a feature
    edges.csv    source,target        ids of two nodes of one graph; taken both ways

Without a split column the labelled graphs are split 60/20/20. Faults come in one message, each with file and row.
"""

from pathlib import Path

import numpy as np

from workers.data.build import build_dataset
from workers.data.features import DenseFeatures, compact
from workers.data.graph import NO_LABEL, NO_SPLIT, SPLIT_NAMES, TRAIN, GraphDataset, has_label
from workers.data.readers.csv_table import CsvTable, read_table
from workers.data.readers.faults import FaultList
from workers.data.readers.labels import read_targets
from workers.data.readers.many_graphs import cut_graphs, offsets_of
from workers.data.readers.own import (
    EDGES,
    GRAPHS,
    NODES,
    SPLITS,
    edge_note,
    places_of,
    read_features,
    unique_ids,
)
from workers.data.splits import SPLIT_NOTE, stratified_split


def read_own_graphs(folder: Path) -> GraphDataset:
    """Read the set. Raises ``DatasetInvalidError`` with file and row of each fault."""
    faults = FaultList(folder)
    graphs = read_table(folder / GRAPHS, required=("id", "label"), faults=faults)
    nodes = read_table(folder / NODES, required=("id", "graph"), faults=faults)
    edges = read_table(folder / EDGES, required=("source", "target"), faults=faults, only_required=True)
    if (folder / SPLITS).is_file():
        faults.add(SPLITS, row=None, text=f"parts of whole graphs stand in the column split of {GRAPHS}")
    if graphs is None or nodes is None or edges is None:
        faults.raise_if_any()
    tables = [table for table in (graphs, nodes, edges) if table is not None]
    assert len(tables) == 3, "a table is missing only with a fault"
    graphs, nodes, edges = tables
    graph_ids, node_ids = unique_ids(graphs, faults=faults), unique_ids(nodes, faults=faults)
    labels = read_targets(graphs, faults=faults)
    features = read_features(nodes, besides=("id", "graph"), faults=faults)
    graph_of = places_of(nodes, "graph", ids=graph_ids, faults=faults, of_file=GRAPHS)
    ends = [places_of(edges, column, ids=node_ids, faults=faults) for column in ("source", "target")]
    _check_within(edges, ends=ends, graph_of=graph_of, faults=faults)
    sizes = np.bincount(graph_of[graph_of >= 0], minlength=len(graphs))
    _check_nodes(graphs, sizes=sizes, faults=faults)
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
        ),
        num_classes=labels.num_classes,
        class_names=labels.class_names,
        notes=(
            edge_note(edges, ends=ends),
            "features as given, not normalised",
            f"split of {GRAPHS}" if "split" in graphs.header else SPLIT_NOTE.replace("nodes", "graphs"),
        ),
        level="graph",
        task=labels.task,
    )


def _check_within(edges: CsvTable, *, ends: list[np.ndarray], graph_of: np.ndarray, faults: FaultList) -> None:
    known = (ends[0] >= 0) & (ends[1] >= 0)
    faults.add_each(
        EDGES,
        bad=known & (graph_of[ends[0]] != graph_of[ends[1]]),
        rows=edges.rows,
        describe=lambda record: (
            f"the edge {edges.text('source')[record].as_py()!r} -> {edges.text('target')[record].as_py()!r} joins nodes"
            " of two graphs; edges stay within one"
        ),
    )


def _check_nodes(graphs: CsvTable, *, sizes: np.ndarray, faults: FaultList) -> None:
    faults.add_each(
        GRAPHS,
        bad=sizes == 0,
        rows=graphs.rows,
        describe=lambda record: f"graph {graphs.text('id')[record].as_py()!r} has no node in {NODES}",
    )


def _read_split(graphs: CsvTable, *, y: np.ndarray, faults: FaultList) -> np.ndarray:
    """int8 [graphs] of the column split, or our own split where there is none."""
    import pyarrow
    import pyarrow.compute

    known = has_label(y)
    if "split" not in graphs.header:
        return stratified_split(y if y.ndim == 1 else np.where(known, 0, NO_LABEL))
    words = pyarrow.compute.utf8_trim_whitespace(
        pyarrow.compute.cast(graphs.records["split"].combine_chunks(), pyarrow.string()).fill_null("")
    )
    parts = np.asarray(pyarrow.compute.index_in(words, value_set=pyarrow.array(SPLIT_NAMES)).fill_null(NO_SPLIT))
    empty = np.asarray(pyarrow.compute.equal(words, ""))
    faults.add_each(
        GRAPHS,
        bad=(parts == NO_SPLIT) & ~empty,
        rows=graphs.rows,
        describe=lambda record: f"split {words[record].as_py()!r} is none of {', '.join(SPLIT_NAMES)}, or empty",
    )
    faults.add_each(
        GRAPHS,
        bad=(parts != NO_SPLIT) & ~known,
        rows=graphs.rows,
        describe=lambda record: f"a graph in {words[record].as_py()!r} needs a label",
    )
    if not (parts == TRAIN).any():
        faults.add(GRAPHS, row=None, text="the training mask is empty: no row says 'train'")
    return parts.astype(np.int8)
