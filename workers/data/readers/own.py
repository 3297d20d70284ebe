"""A user's own graph: a folder with edges.csv, nodes.csv and, if wanted, splits.csv (many graphs: ``own_graphs``).

    edges.csv    source,target      further columns are ignored, and the notes say so
    nodes.csv    id,label,...       every other column is a feature; an empty label (or -1) means not known
    splits.csv   id,split           train, val or test; nodes that are not listed are in no part

Ids are any text. Labels are all class numbers 0..C-1 without a gap, or all words. Edges are taken both ways. Without
splits.csv the labelled nodes are split 60/20/20. Faults of all files come in one message, each with file and row.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures, compact
from workers.data.graph import NO_LABEL, NO_SPLIT, SPLIT_NAMES, TRAIN, Graph, GraphDataset
from workers.data.readers.csv_table import CsvTable, read_numbers, read_table
from workers.data.readers.faults import FaultList
from workers.data.readers.labels import read_labels
from workers.data.splits import SPLIT_NOTE, stratified_split
from workers.errors import DatasetInvalidError, DatasetNotFoundError

EDGES, NODES, SPLITS, GRAPHS = "edges.csv", "nodes.csv", "splits.csv", "graphs.csv"


def own_key(folder: Path) -> str:
    """Name of the prepared set: a hash of the files' whole content, so an edit of any kind makes another set.

    Raises ``DatasetNotFoundError`` where the folder or a wanted file is missing. Costs one read of the files
    (about 1 GB a second) at every opening.
    """
    missing = [name for name in (EDGES, NODES) if not (folder / name).is_file()]
    if missing:
        found = sorted(file.name for file in folder.iterdir())[:10] if folder.is_dir() else "no such folder"
        raise DatasetNotFoundError(
            f"own data: looked for {EDGES} and {NODES} in {folder}; {' and '.join(missing)} not there (found: {found})."
            " Give the path of a folder that holds both, as the node that trains sees it",
            path=str(folder),
            missing=missing,
        )
    digest = hashlib.sha256(folder.name.encode())
    for name in (EDGES, NODES, SPLITS, GRAPHS):
        if (folder / name).is_file():
            digest.update(name.encode())
            with (folder / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"own-{digest.hexdigest()[:32]}"


def check_unchanged(folder: Path, *, key: str) -> None:
    """Raises ``DatasetInvalidError`` when the files no longer have ``own_key`` ``key``."""
    if own_key(folder) != key:
        raise DatasetInvalidError(f"the files in {folder} changed while they were read; submit again when they rest")


def read_own_graph(folder: Path) -> GraphDataset:
    """Read one graph. Raises ``DatasetInvalidError`` with file and row of each fault."""
    faults = FaultList(folder)
    nodes = read_table(folder / NODES, required=("id", "label"), faults=faults)
    edges = read_table(folder / EDGES, required=("source", "target"), faults=faults, only_required=True)
    splits = None
    if (folder / SPLITS).is_file():
        splits = read_table(folder / SPLITS, required=("id", "split"), faults=faults, only_required=True)
    if nodes is None:
        faults.raise_if_any()
    assert nodes is not None, "a table is missing only with a fault"
    ids = unique_ids(nodes, faults=faults)
    labels = read_labels(nodes, faults=faults)
    features = read_features(nodes, besides=("id", "label"), faults=faults)
    ends = [places_of(edges, "source", ids=ids, faults=faults), places_of(edges, "target", ids=ids, faults=faults)]
    split = _read_split(splits, ids=ids, y=labels.y, faults=faults)
    if edges is not None and np.array_equal(*ends):
        faults.add(EDGES, row=None, text="every edge leads from a node to itself, so no two nodes are joined")
    faults.raise_if_any()
    assert edges is not None, "a table is missing only with a fault"
    adjacency = from_edges(*ends, num_nodes=len(ids))
    graph = Graph(adjacency.indptr, adjacency.indices, features=compact(features), y=labels.y, split=split)
    return build_dataset(
        folder.name,
        graphs=(graph,),
        num_classes=labels.num_classes,
        class_names=labels.class_names,
        notes=(
            edge_note(edges, ends=ends),
            "features as given, not normalised",
            SPLIT_NOTE if splits is None else f"split of {SPLITS}",
        ),
    )


def unique_ids(nodes: CsvTable, *, faults: FaultList) -> Any:
    """The id column; empty and repeated ids are noted."""
    import pyarrow.compute

    ids = nodes.text("id")
    empty = np.asarray(pyarrow.compute.equal(ids, ""))
    faults.add_each(nodes.path.name, bad=empty, rows=nodes.rows, describe=lambda _: "the id is empty")
    codes = np.asarray(ids.dictionary_encode().indices)  # numbered in the order of first sight
    first = np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
    first_rows = nodes.rows[first]
    faults.add_each(
        nodes.path.name,
        bad=~first & ~empty,
        rows=nodes.rows,
        describe=lambda record: f"id {ids[record].as_py()!r} was given already in row {first_rows[codes[record]]}",
    )
    return ids


def read_features(nodes: CsvTable, *, besides: tuple[str, str], faults: FaultList) -> DenseFeatures:
    """All columns but those named, of which there may be none, float32; what is no number is noted."""
    columns = tuple(name for name in nodes.header if name not in besides)
    return DenseFeatures(read_numbers(nodes, columns=columns, faults=faults))


def places_of(table: CsvTable | None, column: str, *, ids: Any, faults: FaultList, of_file: str = NODES) -> np.ndarray:
    """Place among ``ids`` of every id in ``column``, int64; -1 after noting one that ``of_file`` has not."""
    import pyarrow.compute

    if table is None:
        return np.zeros(0, dtype=np.int64)
    texts = table.text(column)
    places = np.asarray(pyarrow.compute.index_in(texts, value_set=ids).fill_null(-1)).astype(np.int64)
    faults.add_each(
        table.path.name,
        bad=places < 0,
        rows=table.rows,
        describe=lambda record: f"{column} {texts[record].as_py()!r} is not an id of {of_file}",
    )
    return places


def _read_split(splits: CsvTable | None, *, ids: Any, y: np.ndarray, faults: FaultList) -> np.ndarray:
    """int8 [N] of splits.csv, or our own split where there is none."""
    import pyarrow
    import pyarrow.compute

    if splits is None:
        return stratified_split(y)
    places = places_of(splits, "id", ids=ids, faults=faults)
    words = splits.text("split")
    parts = np.asarray(pyarrow.compute.index_in(words, value_set=pyarrow.array(SPLIT_NAMES)).fill_null(NO_SPLIT))
    faults.add_each(
        SPLITS,
        bad=parts == NO_SPLIT,
        rows=splits.rows,
        describe=lambda record: f"split {words[record].as_py()!r} is none of {', '.join(SPLIT_NAMES)}",
    )
    split = np.full(len(y), NO_SPLIT, dtype=np.int8)
    listed = np.bincount(places[places >= 0], minlength=len(y))
    faults.add_each(
        SPLITS,
        bad=(places >= 0) & (listed[places] > 1),
        rows=splits.rows,
        describe=lambda record: f"id {ids[int(places[record])].as_py()!r} is listed {listed[places[record]]} times",
    )
    faults.add_each(
        SPLITS,
        bad=(places >= 0) & (y[places] == NO_LABEL),
        rows=splits.rows,
        describe=lambda record: f"node {ids[int(places[record])].as_py()!r} has no label, so it can be in no part",
    )
    if not (parts == TRAIN).any():
        faults.add(SPLITS, row=None, text="the training mask is empty: no row says 'train'")
    split[places[places >= 0]] = parts[places >= 0]
    return split


def edge_note(edges: CsvTable, *, ends: list[np.ndarray]) -> str:
    """What was made of the edges."""
    loops = int((ends[0] == ends[1]).sum())
    ignored = [name for name in edges.header if name not in ("source", "target")]
    note = f"undirected: all {len(edges)} edges are stored both ways, duplicates merged, {loops} self loops left out"
    return f"{note}; columns {', '.join(ignored)} of {EDGES} are ignored" if ignored else note
