"""Hop features: what a node hears from 0, 1, … K hops away, the tokens of NAGphormer (Chen et al., ICLR 2023).

Token k is row v of A_norm^k X, with A_norm = D^-1/2 (A + I) D^-1/2 (degrees with the loop), over the undirected view.
Features are propagated a few columns at a time, so a sparse X never stands in memory as a whole.
"""

from collections.abc import Callable

import numpy as np
import scipy.sparse

from workers.data.features import DenseFeatures
from workers.data.graph import Graph
from workers.data.graph_encodings.structure import checked_rows, over_chunks, propagate, undirected_view

_BLOCK = 32  # columns at a time


def hop_features(
    graph: Graph, *, num_hops: int, rows: range | np.ndarray | None = None, num_threads: int = 1
) -> np.ndarray:
    """float32 [len(rows), num_hops + 1, F]. Raises ``ValueError`` for a negative number or a row that is no node."""
    if num_hops < 0:
        raise ValueError(f"num_hops must not be negative, found {num_hops}")
    wanted = checked_rows(graph, rows)
    indptr, indices = undirected_view(graph)
    scale = 1 / np.sqrt(np.diff(indptr) + 1.0)
    num_features = graph.features.num_features
    tokens = np.empty((len(wanted), num_hops + 1, num_features), dtype=np.float32)
    columns = _columns(graph)

    def hop(first: int, last: int) -> None:
        now = columns(first, last)
        after = np.empty_like(now)
        tokens[:, 0, first:last] = now[wanted]
        for hops in range(1, num_hops + 1):
            propagate(indptr, indices, scale, 1.0, now, after)
            tokens[:, hops, first:last] = after[wanted]
            now, after = after, now

    over_chunks(num_features, hop, chunk=_BLOCK, num_threads=num_threads)
    return tokens


def _columns(graph: Graph) -> Callable[[int, int], np.ndarray]:
    """(first, last) -> float64 [N, last - first] of the features."""
    features = graph.features
    if isinstance(features, DenseFeatures):
        return lambda first, last: np.ascontiguousarray(features.matrix[:, first:last], dtype=np.float64)
    arrays = features.arrays()
    size = (features.num_rows, features.num_features)
    matrix = scipy.sparse.csr_matrix((arrays["values"], arrays["columns"], arrays["indptr"]), shape=size).tocsc()
    return lambda first, last: matrix[:, first:last].toarray().astype(np.float64, order="C")
