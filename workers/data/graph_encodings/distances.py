"""Hop distances as a compact index: one byte per pair, for the rows that a rank owns, never an N x N float matrix.

A graph transformer's bias is a small learned table over buckets of the shortest-path distance (Graphormer, Ying et al.,
NeurIPS 2021, section 3.1.2). What a rank needs is the bucket of (i, j) for its own rows i: of every j
(``distance_buckets``, len(rows) * N bytes, made once for all layers), or, where graphs are large and the limit is
small, only of those within ``max_distance`` (``pairs_within``); all others share the one far bucket.

``distance_buckets`` searches from 64 sources at once, one bit of a word each (Then et al., "The More the Merrier",
VLDB 2014): max_distance passes over the edges per 64 rows. ``pairs_within`` searches from one row at a time, so its
cost follows the pairs that it finds.
"""

from typing import NamedTuple

import numba
import numpy as np

from workers.data.graph import Graph
from workers.data.graph_encodings.structure import checked_rows, over_chunks, places_of, undirected_view

LARGEST_MAX_DISTANCE = 254  # max_distance + 1 must fit a uint8
_WORD = 64
_SHARES = 64  # of the rows, searched from one after the other by each thread: what a share needs meanwhile is small
_BIT_OF_PRODUCT = np.array(  # of (x & -x) * 0x03F79D71B4CB0A89 >> 58: the place of the lowest bit of x
    [((1 << bit) * 0x03F79D71B4CB0A89 & (1 << 64) - 1) >> 58 for bit in range(64)]
).argsort()


class PairIndex(NamedTuple):
    """CSR over the asked rows: the nodes within reach of row i stand at ``indptr[i]:indptr[i + 1]``, ascending.

    ``workers.ops.near_pairs`` is made of it.
    """

    indptr: np.ndarray  # int64 [n + 1]
    columns: np.ndarray  # int32 [pairs]
    buckets: np.ndarray  # uint8 [pairs], hops; the row itself is at 0


def distance_buckets(
    graph: Graph,
    *,
    rows: range | np.ndarray,
    max_distance: int,
    place: np.ndarray | None = None,
    num_threads: int = 1,
) -> np.ndarray:
    """uint8 [len(rows), N]: hops from each row to each node, ``max_distance + 1`` where farther or unreachable.

    Columns go by the nodes' ``place`` [N], if one is given. Raises ``ValueError`` for a ``max_distance`` that does not
    fit a byte, or a row outside the graph.
    """
    _check_max_distance(max_distance)
    sources = checked_rows(graph, rows)
    indptr, indices = undirected_view(graph)
    places = places_of(graph, place)
    buckets = np.empty((len(sources), graph.num_nodes), dtype=np.uint8)

    def search(first: int, last: int) -> None:
        _search_words(indptr, indices, sources[first:last], max_distance, places, buckets[first:last], _BIT_OF_PRODUCT)

    over_chunks(len(sources), search, chunk=_WORD, num_threads=num_threads)
    return buckets


def pairs_within(
    graph: Graph,
    *,
    rows: range | np.ndarray,
    max_distance: int,
    place: np.ndarray | None = None,
    num_threads: int = 1,
) -> PairIndex:
    """The pairs (row, node) at most ``max_distance`` hops apart; nodes go by their ``place`` [N], if one is given.

    Besides the result it holds a share of it at a time. Raises ``ValueError`` as ``distance_buckets``.
    """
    _check_max_distance(max_distance)
    sources = checked_rows(graph, rows)
    indptr, indices = undirected_view(graph)
    places = places_of(graph, place)
    found: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def search(first: int, last: int) -> None:
        keys, sizes = _search_pairs(indptr, indices, sources[first:last], max_distance, places)
        found[first] = (keys >> 8).astype(np.int32), (keys & 255).astype(np.uint8), sizes

    over_chunks(len(sources), search, chunk=_rows_at_once(len(sources), num_threads), num_threads=num_threads)
    ends = np.zeros(len(sources) + 1, dtype=np.int64)
    for first, (*_, sizes) in found.items():
        ends[first + 1 : first + 1 + len(sizes)] = sizes
    np.cumsum(ends, out=ends)
    columns, buckets = np.empty(ends[-1], dtype=np.int32), np.empty(ends[-1], dtype=np.uint8)
    for first in sorted(found):
        some_columns, some_buckets, sizes = found.pop(first)  # so that both copies of all pairs never stand at once
        pairs = slice(ends[first], ends[first + len(sizes)])
        columns[pairs], buckets[pairs] = some_columns, some_buckets
    return PairIndex(ends, columns, buckets)


def count_pairs_within(
    graph: Graph, *, rows: range | np.ndarray, max_distance: int, num_threads: int = 1
) -> np.ndarray:
    """int64 [len(rows)]: how many pairs ``pairs_within`` finds of each row. Raises ``ValueError`` as it does."""
    _check_max_distance(max_distance)
    sources = checked_rows(graph, rows)
    indptr, indices = undirected_view(graph)
    places, counts = places_of(graph, None), np.empty(len(sources), dtype=np.int64)

    def search(first: int, last: int) -> None:
        counts[first:last] = _search_pairs(indptr, indices, sources[first:last], max_distance, places)[1]

    over_chunks(len(sources), search, chunk=_rows_at_once(len(sources), num_threads), num_threads=num_threads)
    return counts


def _rows_at_once(num_rows: int, num_threads: int) -> int:
    return max(1, -(-num_rows // (_SHARES * num_threads)))


def _check_max_distance(max_distance: int) -> None:
    if not 0 <= max_distance <= LARGEST_MAX_DISTANCE:
        raise ValueError(f"max_distance must be 0..{LARGEST_MAX_DISTANCE} to fit one byte, found {max_distance}")


@numba.njit(nogil=True, cache=True)
def _search_words(
    indptr: np.ndarray,
    indices: np.ndarray,
    sources: np.ndarray,
    max_distance: int,
    places: np.ndarray,
    buckets: np.ndarray,
    bit_of_product: np.ndarray,
) -> None:
    """Up to 64 searches at once: bit b of a node's word says that source b has met it."""
    num_nodes = len(indptr) - 1
    one = np.uint64(1)
    seen = np.zeros(num_nodes, dtype=np.uint64)
    frontier = np.zeros(num_nodes, dtype=np.uint64)
    following = np.zeros(num_nodes, dtype=np.uint64)
    everyone = np.uint64(0)
    buckets[:] = max_distance + 1
    for bit in range(len(sources)):
        mark = one << np.uint64(bit)
        everyone |= mark
        seen[sources[bit]] |= mark
        frontier[sources[bit]] |= mark
        buckets[bit, places[sources[bit]]] = 0
    for hops in range(1, max_distance + 1):
        any_new = np.uint64(0)
        for node in range(num_nodes):
            new = np.uint64(0)
            if seen[node] != everyone:
                for position in range(indptr[node], indptr[node + 1]):
                    new |= frontier[indices[position]]
                new &= ~seen[node]
                seen[node] |= new
                any_new |= new
            following[node] = new
            while new:
                lowest = new & (~new + one)
                buckets[bit_of_product[(lowest * np.uint64(0x03F79D71B4CB0A89)) >> np.uint64(58)], places[node]] = hops
                new ^= lowest
        if not any_new:
            break
        frontier, following = following, frontier


@numba.njit(nogil=True, cache=True)
def _search_pairs(
    indptr: np.ndarray, indices: np.ndarray, sources: np.ndarray, max_distance: int, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(place of the node * 256 + hops of every pair, sorted within a row; pairs per row)."""
    num_nodes = len(indptr) - 1
    last_seen_by = np.full(num_nodes, -1, dtype=np.int64)
    queue = np.empty(num_nodes, dtype=np.int64)
    keys = np.empty(max(16, 4 * len(sources)), dtype=np.int64)
    sizes = np.empty(len(sources), dtype=np.int64)
    used = 0
    for row in range(len(sources)):
        queue[0] = sources[row] << 8
        last_seen_by[sources[row]] = row
        head, level_end, tail = 0, 1, 1
        for hops in range(1, max_distance + 1):
            while head < level_end:
                node = queue[head] >> 8
                head += 1
                for position in range(indptr[node], indptr[node + 1]):
                    neighbour = indices[position]
                    if last_seen_by[neighbour] != row:
                        last_seen_by[neighbour] = row
                        queue[tail] = (np.int64(neighbour) << 8) + hops
                        tail += 1
            if tail == level_end:
                break
            level_end = tail
        while used + tail > len(keys):
            larger = np.empty(2 * len(keys), dtype=np.int64)
            larger[:used] = keys[:used]
            keys = larger
        for position in range(tail):
            keys[used + position] = (places[queue[position] >> 8] << 8) + (queue[position] & 255)
        keys[used : used + tail].sort()
        used += tail
        sizes[row] = tail
    return keys[:used].copy(), sizes
