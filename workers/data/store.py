"""Prepared data sets on disk: .npy arrays and meta.json per set, opened by mapping, prepared once by whoever is first.

    cache/prepared/<key>/meta.json, {indptr,indices,y,split}.npy, features.*.npy, {edge,node}_*.npy
    cache/locks/<lock>.lock

All graphs of a set lie one after the other in the same arrays, so one graph and ten thousand are the same few files. A
set is written to a folder of its own and renamed when complete: nobody ever sees half of one. Two ranks that come at
once meet at the lock: one prepares, the other opens what it made. A set of an older ``FORMAT`` is made again, and so is
one whose raw files have changed.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from planner.frozen import Frozen
from workers.data.features import DenseFeatures, SparseFeatures, concatenate, windows
from workers.data.graph import EDGE_COLUMNS, NODE_COLUMNS, Graph, GraphDataset, Level, Task

# Raise it when the layout changes, or what any reader makes of its files.
FORMAT = 3


class StoredMeta(Frozen):
    """meta.json: what a data set is, without its arrays. ``format`` comes first and is read before the rest.

    ``raw_version`` is that of the raw files that it was made of; empty where they were not told. ``columns`` are those
    that every graph of the set carries.
    """

    format: int
    raw_version: str = ""
    name: str
    fingerprint: str
    num_graphs: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    features: Literal["dense", "sparse"]
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    best_accuracy: float | None
    level: Level
    task: Task
    num_edge_types: int
    edge_type_names: tuple[str, ...]
    node_type_names: tuple[str, ...]
    columns: tuple[str, ...]


def open_or_prepare(
    cache: Path, *, key: str, build: Callable[[], GraphDataset], lock: str | None = None, raw_version: str = ""
) -> GraphDataset:
    """The set under ``key``; ``build`` is called only where there is none, and by one process at a time.

    A set that was made of raw files of another version than ``raw_version`` counts as none; empty takes any. Keys that
    build from the same raw files share a ``lock``. What ``build`` raises comes through and leaves nothing.
    """
    folder = cache / "prepared" / key
    dataset = _open(folder, raw_version)
    if dataset is not None:
        return dataset
    with exclusive(cache / "locks" / f"{lock or key}.lock"):
        dataset = _open(folder, raw_version)  # another process may have been first
        if dataset is None:
            _write(build(), folder, raw_version)
            dataset = _open(folder, raw_version)
    assert dataset is not None, f"{folder} was just written"
    return dataset


def read_meta(cache: Path, key: str) -> StoredMeta | None:
    """What is known of a prepared set, None where there is none of the present format."""
    return _read_meta(cache / "prepared" / key)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the file lock ``path`` against other processes and threads; the kernel frees it if the holder is killed.

    The file stays: removing it would let a third process lock a new file of the same name beside a waiting second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read_meta(folder: Path) -> StoredMeta | None:
    try:
        text = (folder / "meta.json").read_text()
    except FileNotFoundError:
        return None
    if json.loads(text).get("format") != FORMAT:
        return None
    return StoredMeta.model_validate_json(text)


def _open(folder: Path, raw_version: str) -> GraphDataset | None:
    meta = _read_meta(folder)
    if meta is None or (raw_version and meta.raw_version != raw_version):
        return None
    y, split, indptr, indices = (map_array(folder, name) for name in ("y", "split", "indptr", "indices"))
    nodes, edges = map_array(folder, "node_offsets"), map_array(folder, "edge_offsets")
    rows = nodes if meta.level == "node" else np.arange(meta.num_graphs + 1)
    columns = {name: map_array(folder, name) for name in meta.columns}
    graphs = []
    for number, features in enumerate(windows(_open_features(folder, meta), offsets=nodes)):
        first, last = int(nodes[number]), int(nodes[number + 1])
        graphs.append(
            Graph(
                indptr=indptr[first + number : last + number + 1],  # every graph before has one entry more than nodes
                indices=indices[edges[number] : edges[number + 1]],
                features=features,
                y=y[rows[number] : rows[number + 1]],
                split=split[rows[number] : rows[number + 1]],
                **{
                    name: column[edges[number] : edges[number + 1]]
                    for name, column in columns.items()
                    if name in EDGE_COLUMNS
                },
                **{name: column[first:last] for name, column in columns.items() if name in NODE_COLUMNS},
            )
        )
    return GraphDataset(
        name=meta.name,
        graphs=tuple(graphs),
        num_features=meta.num_features,
        num_classes=meta.num_classes,
        fingerprint=meta.fingerprint,
        class_names=meta.class_names,
        notes=meta.notes,
        best_accuracy=meta.best_accuracy,
        level=meta.level,
        task=meta.task,
        num_edge_types=meta.num_edge_types,
        edge_type_names=meta.edge_type_names,
        node_type_names=meta.node_type_names,
    )


def _open_features(folder: Path, meta: StoredMeta) -> DenseFeatures | SparseFeatures:
    if meta.features == "dense":
        return DenseFeatures(map_array(folder, "features.matrix"))
    return SparseFeatures(
        indptr=map_array(folder, "features.indptr"),
        columns=map_array(folder, "features.columns"),
        values=map_array(folder, "features.values"),
        num_features=meta.num_features,
    )


def map_array(folder: Path, name: str) -> np.ndarray:
    """The array that ``write_array`` put there, its pages read when they are touched."""
    # Copy-on-write pages: shared between ranks and never written back, yet of the same (writable) type as arrays in
    # memory, so numba compiles once and torch wraps them without a warning. np.asarray drops the slower memmap class.
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))


def _write(dataset: GraphDataset, folder: Path, raw_version: str) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it held the lock
    partial.mkdir(parents=True)
    try:
        features = concatenate(tuple(graph.features for graph in dataset.graphs))
        for name, array in _arrays(dataset, features).items():
            write_array(partial, name, array)
        with (partial / "meta.json").open("w") as file:
            file.write(_meta_of(dataset, features, raw_version).model_dump_json(indent=2))
            _to_disk(file)
        shutil.rmtree(folder, ignore_errors=True)  # an older one; processes that mapped it keep their pages
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_array(folder: Path, name: str, array: np.ndarray) -> None:
    """Put ``array`` on the disk as ``name``.npy."""
    with (folder / f"{name}.npy").open("wb") as file:
        np.save(file, array, allow_pickle=False)
        _to_disk(file)


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _arrays(dataset: GraphDataset, features: DenseFeatures | SparseFeatures) -> dict[str, np.ndarray]:
    graphs = dataset.graphs
    return {
        "indptr": np.concatenate([graph.indptr for graph in graphs]),
        "indices": np.concatenate([graph.indices for graph in graphs]),
        "y": np.concatenate([graph.y for graph in graphs]),
        "split": np.concatenate([graph.split for graph in graphs]),
        "node_offsets": np.cumsum([0, *(graph.num_nodes for graph in graphs)]),
        "edge_offsets": np.cumsum([0, *(graph.num_edges for graph in graphs)]),
        **{f"features.{name}": array for name, array in features.arrays().items()},
        **{name: np.concatenate([getattr(graph, name) for graph in graphs]) for name in _columns_of(dataset)},
    }


def _meta_of(dataset: GraphDataset, features: DenseFeatures | SparseFeatures, raw_version: str) -> StoredMeta:
    return StoredMeta(
        format=FORMAT,
        raw_version=raw_version,
        name=dataset.name,
        fingerprint=dataset.fingerprint,
        num_graphs=len(dataset.graphs),
        num_nodes=dataset.num_nodes,
        num_edges=dataset.num_edges,
        num_features=dataset.num_features,
        num_classes=dataset.num_classes,
        features="dense" if isinstance(features, DenseFeatures) else "sparse",
        class_names=dataset.class_names,
        notes=dataset.notes,
        best_accuracy=dataset.best_accuracy,
        level=dataset.level,
        task=dataset.task,
        num_edge_types=dataset.num_edge_types,
        edge_type_names=dataset.edge_type_names,
        node_type_names=dataset.node_type_names,
        columns=_columns_of(dataset),
    )


def _columns_of(dataset: GraphDataset) -> tuple[str, ...]:
    """The columns that the graphs carry: all of them the same, as they were checked."""
    return tuple(dataset.graphs[0].columns((*EDGE_COLUMNS, *NODE_COLUMNS)))
