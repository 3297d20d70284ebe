"""Hop distances as a compact index: one byte per pair, for the rows that a rank owns, never an N x N float matrix.

A graph transformer's bias is a small learned table over buckets of the shortest-path distance (Graphormer, Ying et al.,
NeurIPS 2021, section 3.1.2). What a rank needs is the bucket of (i, j) for its own rows i and every j: len(rows) * N
bytes, made once for all layers by a breadth-first search that stops at ``max_distance``. Distances are those of the
undirected view, as in Graphormer, whatever the direction of the edges.

Cost: a row visits the edges of its ball of radius ``max_distance``. On dense graphs (mean degree near 100) that is all
E edges for every row; searching from 64 sources at once in bit words would lift this limit.
"""

import numba
import numpy as np

from workers.data.edges import from_edges, to_edges
from workers.data.graph import Graph

LARGEST_MAX_DISTANCE = 254  # max_distance + 1 must fit a uint8


def distance_buckets(graph: Graph, *, rows: range | np.ndarray, max_distance: int) -> np.ndarray:
    """uint8 [len(rows), N]: hops from each row to each node, ``max_distance + 1`` where farther or unreachable.

    Raises ``ValueError`` for a ``max_distance`` that does not fit a byte, or a row outside the graph.
    """
    if not 0 <= max_distance <= LARGEST_MAX_DISTANCE:
        raise ValueError(f"max_distance must be 0..{LARGEST_MAX_DISTANCE} to fit one byte, found {max_distance}")
    sources = np.asarray(rows, dtype=np.int64)
    num_nodes = graph.num_nodes
    if len(sources) and not (sources.min() >= 0 and sources.max() < num_nodes):
        raise ValueError(f"rows must be nodes 0..{num_nodes - 1}, found {sources.min()}..{sources.max()}")
    indptr, indices = undirected_view(graph)
    buckets = np.empty((len(sources), num_nodes), dtype=np.uint8)
    _truncated_searches(indptr, indices, sources, max_distance, buckets)
    return buckets


def undirected_view(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices) with every edge both ways: the graph's own arrays where it is symmetric already."""
    if _is_symmetric(graph.indptr, graph.indices):
        return graph.indptr, graph.indices
    return from_edges(*to_edges(graph.indptr, graph.indices), num_nodes=graph.num_nodes)


@numba.njit(nogil=True, cache=True)
def _is_symmetric(indptr: np.ndarray, indices: np.ndarray) -> bool:
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


@numba.njit(nogil=True, cache=True)
def _truncated_searches(
    indptr: np.ndarray, indices: np.ndarray, sources: np.ndarray, max_distance: int, buckets: np.ndarray
) -> None:
    """One breadth-first search per row of ``buckets``; the row itself remembers which nodes were seen."""
    num_nodes = len(indptr) - 1
    far = max_distance + 1
    queue = np.empty(num_nodes, dtype=indices.dtype)
    for row in range(len(sources)):
        distances = buckets[row]
        distances[:] = far
        distances[sources[row]] = 0
        queue[0] = sources[row]
        head, level_end, tail = 0, 1, 1
        for hops in range(1, far):
            while head < level_end:
                node = queue[head]
                head += 1
                for position in range(indptr[node], indptr[node + 1]):
                    neighbour = indices[position]
                    if distances[neighbour] == far:
                        distances[neighbour] = hops
                        queue[tail] = neighbour
                        tail += 1
            if tail == level_end:
                break
            level_end = tail
