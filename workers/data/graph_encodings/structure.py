"""What all encodings start from: the undirected view of a graph, its normalised adjacency, and threads over row chunks.

Encodings say where a node lies among the others whatever the direction of the edges, so they are those of the
undirected view (as in Graphormer and in Dwivedi & Bresson's GT).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from workers.data.edges import from_edges, to_edges
from workers.data.graph import Graph


def undirected_view(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices) with every edge both ways: the graph's own arrays where it is symmetric already."""
    if is_symmetric(graph.indptr, graph.indices):
        return graph.indptr, graph.indices
    return from_edges(*to_edges(graph.indptr, graph.indices), num_nodes=graph.num_nodes)


def checked_rows(graph: Graph, rows: range | np.ndarray | None) -> np.ndarray:
    """``rows`` as int64 [n], all rows for None. Raises ``ValueError`` for a row that is no node."""
    checked = np.arange(graph.num_nodes) if rows is None else np.asarray(rows, dtype=np.int64)
    if len(checked) and not (checked.min() >= 0 and checked.max() < graph.num_nodes):
        raise ValueError(f"rows must be nodes 0..{graph.num_nodes - 1}, found {checked.min()}..{checked.max()}")
    return checked


def places_of(graph: Graph, place: np.ndarray | None) -> np.ndarray:
    """``place`` of every node [N], its own number for None."""
    return np.arange(graph.num_nodes) if place is None else place


def inverse_square_roots(degrees: np.ndarray) -> np.ndarray:
    """float64: 1 / sqrt(degree), 0 for a node without neighbours."""
    return np.where(degrees > 0, 1 / np.sqrt(np.maximum(degrees, 1)), 0.0)


def over_chunks(num_rows: int, work: Callable[[int, int], None], *, chunk: int, num_threads: int) -> None:
    """``work(first, last)`` for every run of ``chunk`` rows, ``num_threads`` at a time."""
    starts = range(0, num_rows, chunk)
    ends = [min(start + chunk, num_rows) for start in starts]
    if num_threads == 1 or len(starts) == 1:
        for start, end in zip(starts, ends, strict=True):
            work(start, end)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, starts, ends))


@numba.njit(nogil=True, cache=True)
def propagate(
    indptr: np.ndarray, indices: np.ndarray, scale: np.ndarray, loop: float, x: np.ndarray, out: np.ndarray
) -> None:
    """``out`` = S x for S = diag(scale) (A + loop I) diag(scale): float64 [N], [N, C], [N, C]."""
    for node in range(len(indptr) - 1):
        for column in range(x.shape[1]):
            out[node, column] = loop * scale[node] * x[node, column]
        for position in range(indptr[node], indptr[node + 1]):
            neighbour = indices[position]
            weight = scale[neighbour]
            for column in range(x.shape[1]):
                out[node, column] += weight * x[neighbour, column]
        for column in range(x.shape[1]):
            out[node, column] *= scale[node]


@numba.njit(nogil=True, cache=True)
def is_symmetric(indptr: np.ndarray, indices: np.ndarray) -> bool:
    """Whether CSC equals its own transpose: walking the columns in order must consume every row in order."""
    next_place = indptr[:-1].copy()
    for target in range(len(indptr) - 1):
        for position in range(indptr[target], indptr[target + 1]):
            source = indices[position]
            place = next_place[source]
            if place == indptr[source + 1] or indices[place] != target:
                return False
            next_place[source] = place + 1
    return True
