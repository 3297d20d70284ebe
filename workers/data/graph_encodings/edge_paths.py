"""Edges along one shortest path of every pair, for the edge encoding of Graphormer (Ying et al., 2021, section 3.1.3).

For small graphs: n * N * max_distance bytes. The path is that of a breadth-first search which visits nodes in ascending
order, so it is the same on every machine and for any rows.
"""

import numba
import numpy as np

from workers.data.graph import Graph
from workers.data.graph_encodings.structure import (
    checked_rows,
    is_symmetric,
    over_chunks,
    places_of,
    undirected_view,
)

_CHUNK = 64


def edge_paths(
    graph: Graph,
    *,
    max_distance: int,
    rows: range | np.ndarray | None = None,
    place: np.ndarray | None = None,
    num_threads: int = 1,
) -> np.ndarray:
    """uint8 [len(rows), N, max_distance]: 1 + type of the edges from each row to each node, in order; then zeros.

    Columns go by the nodes' ``place`` [N], if one is given. All zeros for pairs that are farther apart, and for a node
    with itself; edges without types count as type 0.
    Raises ``ValueError`` for edges with types that lead one way only, and for a row that is no node.
    """
    sources = checked_rows(graph, rows)
    if graph.edge_types is None:
        indptr, indices = undirected_view(graph)
        types = np.ones(len(indices), dtype=np.uint8)
    else:
        if not is_symmetric(graph.indptr, graph.indices):
            raise ValueError("edge paths need every edge in both directions, with the type of each")
        indptr, indices, types = graph.indptr, graph.indices, graph.edge_types + np.uint8(1)
    places = places_of(graph, place)
    paths = np.zeros((len(sources), graph.num_nodes, max_distance), dtype=np.uint8)

    def search(first: int, last: int) -> None:
        _search(indptr, indices, types, sources[first:last], places, paths[first:last])

    over_chunks(len(sources), search, chunk=_CHUNK, num_threads=num_threads)
    return paths


@numba.njit(nogil=True, cache=True)
def _search(
    indptr: np.ndarray,
    indices: np.ndarray,
    types: np.ndarray,
    sources: np.ndarray,
    places: np.ndarray,
    paths: np.ndarray,
) -> None:
    num_nodes, max_distance = paths.shape[1], paths.shape[2]
    seen_by = np.full(num_nodes, -1, dtype=np.int64)
    queue = np.empty(num_nodes, dtype=np.int64)
    for row in range(len(sources)):
        queue[0] = sources[row]
        seen_by[sources[row]] = row
        head, level_end, tail = 0, 1, 1
        for hops in range(max_distance):
            queue[head:level_end].sort()
            while head < level_end:
                node = queue[head]
                head += 1
                for position in range(indptr[node], indptr[node + 1]):
                    neighbour = indices[position]
                    if seen_by[neighbour] != row:
                        seen_by[neighbour] = row
                        path = paths[row, places[neighbour]]
                        path[:hops] = paths[row, places[node], :hops]
                        path[hops] = types[position]
                        queue[tail] = neighbour
                        tail += 1
            if tail == level_end:
                break
            level_end = tail
