"""Encodings on disk: made once per graph and parameters, committed by rename, mapped by everyone after.

    stored(distance_buckets, graphs, paths=paths, rows=range(0, 1000), max_distance=5)

    cache/encodings/<function>-<key>/0.npy 0.shapes.npy …      the arrays of all graphs, one after the other

The key is a hash of the graphs' content and of the parameters; threads do not count. Ranks that come at once meet at a
lock: one computes, the others read, so that all hold the same bits.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.graph import Graph
from workers.data.paths import DataPaths
from workers.data.store import exclusive, map_array, write_array

# Raise it when the layout changes, or what any encoding means.
FORMAT = 1

# graph, parameters by name -> one array, or a tuple of them
Encode = Callable[..., np.ndarray | tuple[np.ndarray, ...]]


def stored(
    encode: Encode, graphs: Sequence[Graph], *, paths: DataPaths, num_threads: int = 1, **parameters: Any
) -> list[tuple[np.ndarray, ...]]:
    """``encode(graph, **parameters)`` of every graph, as tuples of arrays that are mapped from the cache.

    Several graphs are spread over ``num_threads``; of one graph ``encode`` itself uses them if it can.
    """
    key = _key(encode, graphs, parameters)
    folder = paths.cache / "encodings" / f"{encode.__name__}-{key}"
    with exclusive(paths.cache / "locks" / f"{folder.name}.lock"):
        if not folder.is_dir():
            _write(_compute(encode, graphs, num_threads=num_threads, parameters=parameters), folder)
    return _open(folder)


def _key(encode: Encode, graphs: Sequence[Graph], parameters: dict[str, Any]) -> str:
    plain = {name: _plain(value) for name, value in parameters.items()}
    digest = hashlib.sha256(json.dumps([FORMAT, encode.__module__, plain], sort_keys=True).encode())
    for graph in graphs:
        for name, array in graph.arrays().items():
            digest.update(repr((name, array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()]
    return repr(value) if isinstance(value, range) else value


def _compute(
    encode: Encode, graphs: Sequence[Graph], *, num_threads: int, parameters: dict[str, Any]
) -> list[tuple[np.ndarray, ...]]:
    if len(graphs) == 1:
        own_threads = {"num_threads": num_threads} if "num_threads" in signature(encode).parameters else {}
        found = [encode(graphs[0], **parameters, **own_threads)]
    else:
        with ThreadPoolExecutor(num_threads) as pool:
            found = list(pool.map(lambda graph: encode(graph, **parameters), graphs))
    return [arrays if isinstance(arrays, tuple) else (arrays,) for arrays in found]


def _write(found: list[tuple[np.ndarray, ...]], folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed while it held the lock
    partial.mkdir(parents=True)
    for place, arrays in enumerate(zip(*found, strict=True)):
        flat = arrays[0] if len(arrays) == 1 else np.concatenate([array.reshape(-1) for array in arrays])
        write_array(partial, str(place), flat.reshape(-1))
        write_array(partial, f"{place}.shapes", np.array([array.shape for array in arrays], dtype=np.int64))
    partial.rename(folder)


def _open(folder: Path) -> list[tuple[np.ndarray, ...]]:
    num_arrays = sum(1 for file in folder.iterdir() if file.name.endswith(".shapes.npy"))
    columns = []
    for place in range(num_arrays):
        shapes = map_array(folder, f"{place}.shapes")
        ends = np.cumsum(np.prod(shapes, axis=1))
        parts = np.split(map_array(folder, str(place)), ends[:-1])
        columns.append([part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)])
    return list(zip(*columns, strict=True))
