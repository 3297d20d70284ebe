"""From a list of edges to CSC: ids checked, self loops dropped, duplicates merged, both directions added.

Policy, the same for every data set: **self loops are dropped** (GCN adds its own, and to a graph transformer a node is
at distance 0 from itself anyway) and **duplicates are merged**; without ``directed`` every edge is stored both ways, as
PyG gives the named sets.
"""

from typing import NamedTuple

import numpy as np

from workers.errors import DatasetInvalidError

_INT32_MAX = 2**31 - 1
_LARGEST_NUM_NODES = 3_037_000_499  # floor(sqrt(2^63 - 1)): up to here target * N + source fits an int64


class Adjacency(NamedTuple):
    """CSC: in-neighbours of v are ``indices[indptr[v]:indptr[v + 1]]``, sorted ascending, each once."""

    indptr: np.ndarray  # int64 [N + 1]
    indices: np.ndarray  # index_dtype(N, E) [E]


def index_dtype(num_nodes: int, num_edges: int) -> np.dtype:
    """int32 while every node id and every edge position fits it, int64 above 2^31 - 1. Allocates nothing."""
    return np.dtype(np.int64 if max(num_nodes, num_edges) > _INT32_MAX else np.int32)


def from_edges(sources: np.ndarray, targets: np.ndarray, *, num_nodes: int, directed: bool = False) -> Adjacency:
    """CSC of the edges ``sources[e] -> targets[e]``, in any order, under the policy above.

    ``directed`` keeps each edge one way: v then hears only from the sources of edges that end in it. Raises
    ``DatasetInvalidError`` that names the first edge with an id that is negative, too large or not a whole number.
    """
    sources, targets = checked_ids(sources, targets, num_nodes=num_nodes)
    if not directed:
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
    apart = sources != targets
    # one sort of target * N + source orders by target, then source, and brings duplicates together
    keys = np.sort(targets[apart] * num_nodes + sources[apart])
    keys = keys[np.diff(keys, prepend=-1) != 0]  # np.unique would hash them, 30 times slower on distinct keys
    targets, indices = np.divmod(keys, max(1, num_nodes))
    return Adjacency(indptr_of(targets, num_targets=num_nodes), indices.astype(index_dtype(num_nodes, len(indices))))


def to_edges(indptr: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(sources, targets), int64 [E] each: the inverse of ``from_edges``."""
    return indices.astype(np.int64), targets_of(indptr)


def indptr_of(targets: np.ndarray, *, num_targets: int) -> np.ndarray:
    """int64 [num_targets + 1]: where each target's edges start once ``targets`` [E], in any order, are sorted."""
    indptr = np.zeros(num_targets + 1, dtype=np.int64)
    np.cumsum(np.bincount(targets, minlength=num_targets), out=indptr[1:])
    return indptr


def targets_of(indptr: np.ndarray) -> np.ndarray:
    """int64 [E]: the target of every edge; the inverse of ``indptr_of``."""
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int64), np.diff(indptr))


def checked_ids(sources: np.ndarray, targets: np.ndarray, *, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Both ends as int64, every one of them an id of a node. Raises ``DatasetInvalidError``."""
    if num_nodes > _LARGEST_NUM_NODES:
        raise DatasetInvalidError(
            f"the graph has {num_nodes} nodes; one build sorts at most {_LARGEST_NUM_NODES}:"
            " build it in parts of fewer nodes",
        )
    sources, targets = np.asarray(sources), np.asarray(targets)
    if sources.shape != targets.shape:
        raise DatasetInvalidError(
            f"{sources.size} sources and {targets.size} targets: every edge needs one of each", num_nodes=num_nodes
        )
    for ends in (sources, targets):
        if ends.size and ends.dtype.kind not in "iu":
            raise DatasetInvalidError(f"node ids are whole numbers; found the type {ends.dtype}: convert them first")
    # checked before the cast: an unsigned id above 2^63 would turn negative, an overflowed one already is
    bad = (sources < 0) | (sources >= num_nodes) | (targets < 0) | (targets >= num_nodes)
    if bad.any():
        edge = int(np.flatnonzero(bad)[0])
        source, target = int(sources[edge]), int(targets[edge])
        node = target if 0 <= source < num_nodes else source
        hint = "; a negative id is often an int32 overflow: use int64" if node < 0 else ""
        raise DatasetInvalidError(
            f"edge {edge} ({source} -> {target}) names node {node}, which does not exist:"
            f" the nodes are 0..{num_nodes - 1}{hint}",
            edge=edge,
            node=node,
        )
    return sources.astype(np.int64), targets.astype(np.int64)
