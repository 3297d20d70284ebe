"""The named sets that PyG knows, through PyG's own classes: Planetoid, Amazon, Coauthor, heterophilous graphs.

PyG writes beside what it reads, so it is pointed at our copy of the raw files. torch and torch_geometric are imported
only when a set is prepared. Planetoid's raw files are pickles: a data root is trusted like code.
"""

import contextlib
import shutil
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures, SparseFeatures, compact, normalize_rows, sparse_from_coordinates
from workers.data.graph import Graph, GraphDataset
from workers.data.paths import DataPaths
from workers.data.sources import Source, copy_to_cache, find_source, in_raw_cache, not_found, raw_cache
from workers.data.splits import SPLIT_NOTE, split_from_members, stratified_split
from workers.errors import DatasetInvalidError

DOWNLOAD_TIMEOUT_S = 20.0
_GRAPH_NOTE = "undirected: every edge is stored both ways; self loops and duplicates are left out"


def read_pyg(source: Source, *, paths: DataPaths, split: int) -> GraphDataset:
    """Prepare one of PyG's sets; the caller holds the source's lock.

    Raises ``DatasetNotFoundError`` where the files are neither found nor downloaded, ``DatasetInvalidError`` where
    PyG cannot read them.
    """
    place = find_source(source, paths=paths)
    if place is not None:
        copy_to_cache(source, place=place, paths=paths)
    elif not in_raw_cache(source, paths=paths):
        _check_reachable(source, paths=paths)
    data = _run_pyg(source, paths=paths, place=place)
    y = data.y.numpy().astype(np.int64)
    parts, split_note = _split(source, data, y=y, folder=raw_cache(source, paths=paths), index=split)
    adjacency = from_edges(*data.edge_index.numpy(), num_nodes=len(y))
    features, feature_note = _features(source, data.x)
    graph = Graph(adjacency.indptr, adjacency.indices, features=compact(features), y=y, split=parts)
    return build_dataset(
        source.name, graphs=(graph,), num_classes=int(y.max()) + 1, notes=(split_note, feature_note, _GRAPH_NOTE)
    )


def _run_pyg(source: Source, *, paths: DataPaths, place: Path | None) -> Any:
    """PyG's ``Data`` of the set; its processed file is removed again, ours takes its place."""
    import torch_geometric.datasets

    folder = raw_cache(source, paths=paths)
    had_files = in_raw_cache(source, paths=paths)
    shutil.rmtree(folder / "processed", ignore_errors=True)
    try:
        with _socket_timeout(DOWNLOAD_TIMEOUT_S):
            return getattr(torch_geometric.datasets, source.pyg_class)(
                root=str(paths.cache / "raw" / source.family),
                name=source.name,
                pre_transform=_with_sparse_features if source.bag_of_words else None,
            )[0]
    except Exception as error:  # PyG, NumPy, pickle, fsspec and the network raise whatever they like
        shutil.rmtree(folder, ignore_errors=True)  # half a download must not be taken for a whole one next time
        reason = f"{type(error).__name__}: {error}"
        if not had_files:
            download = f"the download from {source.url} failed ({reason})"
            raise not_found(source, paths=paths, download=download) from error
        raise DatasetInvalidError(
            f"data set {source.name}: PyG cannot read the files in {(place or folder) / 'raw'} ({reason});"
            " compare them with the published ones",
            name=source.name,
        ) from error
    finally:
        shutil.rmtree(folder / "processed", ignore_errors=True)


def _with_sparse_features(data: Any) -> Any:
    """PyG's hook before it saves: a dense bag of words would put 1.2 GB of zeros on disk for Coauthor Physics."""
    data.x = data.x.to_sparse()
    return data


def _features(source: Source, x: Any) -> tuple[DenseFeatures | SparseFeatures, str]:
    if not source.bag_of_words:
        return DenseFeatures(x.numpy().astype(np.float32)), "features as published"
    cells = x.coalesce()
    rows, columns = cells.indices().numpy()
    sparse = sparse_from_coordinates(rows, columns, cells.values().numpy(), shape=tuple(x.shape))
    return normalize_rows(sparse), "features are bags of words, each row divided by its sum"


def _split(source: Source, data: Any, *, y: np.ndarray, folder: Path, index: int) -> tuple[np.ndarray, str]:
    """The published split (one of several: masks [N, S]), the one shipped beside the raw files, or one made here."""
    if "train_mask" in data:
        masks = [data[f"{part}_mask"].numpy() for part in ("train", "val", "test")]
        if source.num_splits > 1:
            masks = [mask[:, index] for mask in masks]
        which = f"published split {index} of {source.num_splits}" if source.num_splits > 1 else "public split"
        return split_from_members(len(y), train=masks[0], validation=masks[1], test=masks[2]), which
    file = folder / "split" / source.split_file
    if file.is_file():
        with np.load(file) as members:
            split = split_from_members(
                len(y), train=members["train"], validation=members["valid"], test=members["test"]
            )
        return split, f"split shipped beside the raw files ({source.split_file})"
    return stratified_split(y), SPLIT_NOTE


def _check_reachable(source: Source, *, paths: DataPaths) -> None:
    """One bounded question first: PyG's download of Planetoid has no time limit of its own."""
    try:
        request = urllib.request.Request(source.url, method="HEAD")
        with urllib.request.urlopen(request, timeout=DOWNLOAD_TIMEOUT_S):
            return
    except OSError as error:  # URLError and time-outs are OSErrors
        raise not_found(source, paths=paths, download=f"{source.url} cannot be reached ({error})") from error


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
