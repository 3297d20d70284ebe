"""Hot feature rows of other nodes, kept here within a byte budget, in front of features that lie elsewhere.

Which rows are hot is decided once, from the graph: by the chance that a mini-batch needs a node, propagated hop by hop
from the seeds (vertex inclusion probability: Kaler et al., SALIENT++, MLSys 2023), or by how many nodes hear from it
(degree: Dong et al., GNS, KDD 2021). What the cache answers are the very bytes that the holders would send, so training
is the same bit for bit with it and without.
"""

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from planner.caching import CachePolicy
from workers.data.features import DenseFeatures, SparseFeatures, concatenate
from workers.data.features_in_pieces import FeaturesInPieces, Piece, pieces_of
from workers.data.graph import Graph
from workers.data.remote_features import RemoteFeatures

_EDGES_AT_A_TIME = 1 << 18  # of a pass over all edges: 2 MB for every number of an edge
_ROWS_AT_A_TIME = 1 << 14  # while the cache is filled
_NOT_HERE = -1


class CachedFeatures(FeaturesInPieces):
    """``base`` with the rows ``hot`` in front of it; ``numbers`` [len(hot)] says which these are."""

    def __init__(self, base: RemoteFeatures, *, hot: DenseFeatures | SparseFeatures, numbers: np.ndarray) -> None:
        self._base, self._hot = base, hot
        self.num_rows, self.num_features, self.is_sparse = base.num_rows, base.num_features, base.is_sparse
        self._place = np.full(base.num_rows, _NOT_HERE, dtype=_place_dtype(base.num_rows))
        self._place[numbers] = np.arange(len(numbers))
        self._lock = threading.Lock()
        self.hits = self.misses = 0  # rows that others hold: found here, asked for

    @property
    def nbytes(self) -> int:
        """What the cache takes."""
        return self._place.nbytes + sum(array.nbytes for array in self._hot.arrays().values())

    def pieces(self, rows: np.ndarray) -> Iterator[Piece]:
        """As those of ``RemoteFeatures``; what is kept here comes first."""
        rows = np.asarray(rows)
        places = self._place[rows]
        here, others = np.flatnonzero(places != _NOT_HERE), np.flatnonzero(places == _NOT_HERE)
        yield from pieces_of(self._hot, places[here], here)
        for piece_places, piece in self._base.pieces(rows[others]):
            yield others[piece_places], piece
        with self._lock:
            self.hits += len(here)
            self.misses += len(others) - int(np.count_nonzero(self._base.is_own(rows[others])))

    def update(self, rows: np.ndarray, values: np.ndarray) -> None:
        """As ``RemoteFeatures.update``; of the rows that are kept here, these alone change."""
        self._base.update(rows, values)
        places = self._place[rows]
        is_here = places != _NOT_HERE
        self._hot = self._hot.replaced(places[is_here], values[is_here])

    def arrays(self) -> dict[str, np.ndarray]:
        """As those of ``base``: the rows that are held here for others, too."""
        return self._base.arrays()

    def first_not_finite(self) -> tuple[int, int] | None:
        """As that of ``base``."""
        return self._base.first_not_finite()


def fill_cache(base: RemoteFeatures, *, hottest: np.ndarray, max_bytes: int) -> CachedFeatures | None:
    """``base`` behind a cache of the first of ``hottest`` (rows, hottest first) that others hold and that fit.

    None where ``max_bytes`` hold no row. Raises what ``RemoteFeatures.take`` does.
    """
    left = max_bytes - base.num_rows * _place_dtype(base.num_rows).itemsize
    wanted = hottest[~base.is_own(hottest)]
    pieces, num_rows = [], 0
    while left > 0 and num_rows < len(wanted):
        chunk = wanted[num_rows : num_rows + min(_ROWS_AT_A_TIME, 1 + left // _least_row_bytes(base))]
        piece = base.take(chunk)
        ends = np.cumsum(_row_bytes(piece))
        fitting = int(np.searchsorted(ends, left, side="right"))
        pieces.append(piece if fitting == len(chunk) else piece.take(np.arange(fitting)))
        num_rows += fitting
        if fitting < len(chunk):
            break
        left -= int(ends[-1])
    if not num_rows:
        return None
    return CachedFeatures(base, hot=concatenate(tuple(pieces)), numbers=wanted[:num_rows])


def count_hot_rows(max_bytes: int, *, num_rows: int, feature_bytes: int) -> int:
    """How many of ``num_rows`` rows of ``feature_bytes`` in all a cache of ``max_bytes`` holds, of mean size."""
    left = max_bytes - num_rows * _place_dtype(num_rows).itemsize
    return max(0, min(num_rows, left * num_rows // max(1, feature_bytes)))


def rank_rows(
    graph: Graph, *, policy: CachePolicy, seeds: np.ndarray, batch_size: int, fanouts: Sequence[int]
) -> np.ndarray:
    """All nodes of ``graph``, hottest first, int64 [N]; equal ones by number.

    ``batch_size`` of the ``seeds`` make a mini-batch.
    """
    if policy == "degree":
        heat = np.bincount(graph.indices, minlength=graph.num_nodes).astype(np.float64)
    else:
        heat = inclusion_chances(graph, seeds=seeds, batch_size=batch_size, fanouts=fanouts)
    return np.argsort(-heat, kind="stable")


def inclusion_chances(graph: Graph, *, seeds: np.ndarray, batch_size: int, fanouts: Sequence[int]) -> np.ndarray:
    """The chance of every node to be in a mini-batch, float64 [N], as if nodes were met independently of each other.

    A node is met at hop h + 1 unless each of those that hear from it was not met at hop h, or chose others: with
    fanout k a node of in-degree d chooses a given neighbour with the chance min(1, k / d).
    """
    met = np.zeros(graph.num_nodes)
    met[seeds] = min(1.0, batch_size / max(1, len(seeds)))
    log_missed = _log_missed(met)
    for fanout in fanouts:
        degrees = np.diff(graph.indptr)
        chosen = met if fanout < 0 else met * np.minimum(1.0, fanout / np.maximum(degrees, 1))
        log_missed_now = _sum_over_hearers(graph, _log_missed(chosen))
        met = -np.expm1(log_missed_now)
        log_missed += log_missed_now
    return -np.expm1(log_missed)


def _log_missed(chances: np.ndarray) -> np.ndarray:
    return np.log1p(-np.minimum(chances, 1 - 1e-12))


def _sum_over_hearers(graph: Graph, values: np.ndarray) -> np.ndarray:
    """For every node the sum of ``values`` [N] over those that hear from it."""
    sums = np.zeros(graph.num_nodes)
    for start in range(0, graph.num_edges, _EDGES_AT_A_TIME):
        edges = np.arange(start, min(start + _EDGES_AT_A_TIME, graph.num_edges))
        targets = np.searchsorted(graph.indptr, edges, side="right") - 1
        sums += np.bincount(graph.indices[edges], weights=values[targets], minlength=graph.num_nodes)
    return sums


def _place_dtype(num_rows: int) -> np.dtype:
    return np.dtype(np.int32 if num_rows < 2**31 else np.int64)


def _least_row_bytes(features: RemoteFeatures) -> int:
    return 8 if features.is_sparse else max(1, 4 * features.num_features)


def _row_bytes(features: DenseFeatures | SparseFeatures) -> np.ndarray:
    """Bytes of every row [rows]."""
    if isinstance(features, DenseFeatures):
        return np.full(features.num_rows, 4 * features.num_features)
    return 8 * (1 + np.diff(features.indptr))
