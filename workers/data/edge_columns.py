"""Edges with what they carry (types, weights, times, features) to CSC, under the policy of ``edges``.

An edge is (source, target, type, time). Those given more than once are one edge: their weights are added up (as PyG's
``coalesce`` does), features are those of the first. Without ``directed`` each edge is stored both ways with the same
type, weight, time and features. Self loops are dropped.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from workers.data.edges import Adjacency, checked_ids, from_edges, index_dtype, indptr_of


class EdgeColumns(NamedTuple):
    """What edges carry beside their ends, in the order of the edges; None where they carry nothing of the kind."""

    types: np.ndarray | None = None  # uint8 [E]
    weights: np.ndarray | None = None  # float32 [E]
    times: np.ndarray | None = None  # int64 [E]
    features: np.ndarray | None = None  # float32 [E, D]

    def map(self, change: Callable[[np.ndarray], np.ndarray]) -> "EdgeColumns":
        """Each column that there is, as ``change`` makes it."""
        return EdgeColumns(*(None if column is None else change(column) for column in self))

    def fields(self) -> dict[str, np.ndarray | None]:
        """By the names of ``Graph``."""
        return {f"edge_{name}": column for name, column in self._asdict().items()}


NO_COLUMNS = EdgeColumns()


def from_edge_table(
    sources: np.ndarray, targets: np.ndarray, *, num_nodes: int, columns: EdgeColumns, directed: bool = False
) -> tuple[Adjacency, EdgeColumns]:
    """CSC of the edges ``sources[e] -> targets[e]``, and their columns in its order (by target, source, type, time).

    Raises ``DatasetInvalidError`` as ``from_edges`` does.
    """
    if all(column is None for column in columns):
        return from_edges(sources, targets, num_nodes=num_nodes, directed=directed), columns
    sources, targets = checked_ids(sources, targets, num_nodes=num_nodes)
    if not directed:
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
        columns = columns.map(lambda column: np.concatenate([column, column]))
    ends = targets * num_nodes + sources
    keys = [key for key in (columns.times, columns.types, ends) if key is not None]  # the last counts most
    order = np.lexsort(keys)  # stable: of equal edges, the first given comes first
    order = order[sources[order] != targets[order]]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    first = order[is_first]
    merged = columns.map(lambda column: column[first])
    if columns.weights is not None and len(first):
        sums = np.add.reduceat(columns.weights[order].astype(np.float64), np.flatnonzero(is_first))
        merged = merged._replace(weights=sums.astype(np.float32))
    dtype = index_dtype(num_nodes, len(first))
    return Adjacency(indptr_of(targets[first], num_targets=num_nodes), sources[first].astype(dtype)), merged
