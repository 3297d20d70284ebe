"""Node features, dense or sparse, behind one ``gather``: what is mostly zeros on disk stays so in memory.

Bag-of-words sets are about one per cent full: Coauthor Physics would weigh 1.2 GB as a dense float32 matrix and weighs
14 MB as CSR. ``compact`` chooses the form; users of a graph only see ``gather``.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from workers.data.edges import indptr_of, targets_of
from workers.errors import DatasetInvalidError

# Below this share of non-zeros CSR (8 bytes a value) is far smaller than dense (4 bytes a cell), and the extra work of
# a gather stays below that of writing the zeros.
SPARSE_BELOW_DENSITY = 0.10
_CHUNK_CELLS = 1 << 24  # cells checked at a time: 64 MB of float32


@dataclass(frozen=True, eq=False)
class DenseFeatures:
    """A float32 matrix [N, F], usually memory-mapped."""

    matrix: np.ndarray

    @property
    def num_rows(self) -> int:
        """N."""
        return self.matrix.shape[0]

    @property
    def num_features(self) -> int:
        """F."""
        return self.matrix.shape[1]

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Float32 [len(rows), F], a copy. Raises ``DatasetInvalidError`` for a row that does not exist."""
        check_rows(rows, num_rows=self.num_rows)
        return self.matrix[rows]

    def take(self, rows: np.ndarray) -> "DenseFeatures":
        """The features of ``rows``, a copy. Raises ``DatasetInvalidError`` for a row that does not exist."""
        return DenseFeatures(self.gather(rows))

    def replaced(self, rows: np.ndarray, values: np.ndarray) -> "DenseFeatures":
        """A copy in which ``rows``, each named once, have the float32 ``values`` [len(rows), F]."""
        matrix = self.matrix.copy()
        matrix[rows] = values
        return DenseFeatures(matrix)

    def arrays(self) -> dict[str, np.ndarray]:
        """One array: ``matrix``."""
        return {"matrix": self.matrix}

    def first_not_finite(self) -> tuple[int, int] | None:
        """(node, feature) of the first NaN or infinity."""
        step = max(1, _CHUNK_CELLS // max(1, self.num_features))
        for start in range(0, self.num_rows, step):
            bad = np.argwhere(~np.isfinite(self.matrix[start : start + step]))
            if len(bad):
                return start + int(bad[0, 0]), int(bad[0, 1])
        return None


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """CSR: row v holds ``values[indptr[v]:indptr[v + 1]]`` in the columns ``columns[...]``, sorted within a row.

    ``indptr`` need not start at 0: the rows of one small graph are a window on the arrays of the whole set.
    """

    indptr: np.ndarray  # int64 [N + 1]
    columns: np.ndarray  # int32 [nnz]
    values: np.ndarray  # float32 [nnz]
    num_features: int

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.indptr) - 1

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Float32 [len(rows), F], dense. Raises ``DatasetInvalidError`` for a row that does not exist."""
        indptr, positions = self._find(rows)
        out = np.zeros((len(rows), self.num_features), dtype=np.float32)
        out[targets_of(indptr), self.columns[positions]] = self.values[positions]
        return out

    def take(self, rows: np.ndarray) -> "SparseFeatures":
        """The features of ``rows``, a copy. Raises ``DatasetInvalidError`` for a row that does not exist."""
        indptr, positions = self._find(rows)
        return SparseFeatures(indptr, self.columns[positions], self.values[positions], num_features=self.num_features)

    def replaced(self, rows: np.ndarray, values: np.ndarray) -> "SparseFeatures":
        """A copy in which ``rows``, each named once, have the float32 ``values`` [len(rows), F]."""
        kept = np.setdiff1d(np.arange(self.num_rows), rows)
        cells = values.nonzero()
        fresh = sparse_from_coordinates(*cells, values[cells], shape=values.shape)
        return put_together([(kept, self.take(kept)), (rows, fresh)])

    def _find(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(``indptr`` of ``rows`` alone, the positions of their values)."""
        check_rows(rows, num_rows=self.num_rows)
        rows = np.asarray(rows)
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        # position of every wanted value: its row's start plus its place within the row
        return indptr, np.arange(indptr[-1]) + np.repeat(starts - indptr[:-1], lengths)

    def arrays(self) -> dict[str, np.ndarray]:
        """``indptr`` from 0, and the window of ``columns`` and ``values`` that it spans."""
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        return {
            "indptr": self.indptr - first,
            "columns": self.columns[first:last],
            "values": self.values[first:last],
        }

    def first_not_finite(self) -> tuple[int, int] | None:
        """(node, feature) of the first NaN or infinity."""
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        bad = np.flatnonzero(~np.isfinite(self.values[first:last]))
        if not len(bad):
            return None
        position = first + int(bad[0])
        return int(np.searchsorted(self.indptr, position, side="right")) - 1, int(self.columns[position])


def check_rows(rows: np.ndarray, *, num_rows: int) -> None:
    """Refuse ids outside 0..num_rows - 1: NumPy would silently count negative ones from the end."""
    rows = np.asarray(rows)
    if len(rows) and (rows.min() < 0 or rows.max() >= num_rows):
        place = int(np.flatnonzero((rows < 0) | (rows >= num_rows))[0])
        raise DatasetInvalidError(
            f"features of node {rows[place]} were asked (place {place} of the request);"
            f" the nodes are 0..{num_rows - 1}",
            node=int(rows[place]),
        )


def sparse_from_coordinates(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, *, shape: tuple[int, int]
) -> SparseFeatures:
    """CSR of the given cells, in any order, each given once."""
    order = np.lexsort((columns, rows))
    return SparseFeatures(
        indptr=indptr_of(rows, num_targets=shape[0]),
        columns=columns[order].astype(np.int32),
        values=values[order].astype(np.float32),
        num_features=shape[1],
    )


def compact(features: DenseFeatures | SparseFeatures) -> DenseFeatures | SparseFeatures:
    """The same features in the form that suits their density (``SPARSE_BELOW_DENSITY``)."""
    cells = max(1, features.num_rows * features.num_features)
    if isinstance(features, DenseFeatures):
        if np.count_nonzero(features.matrix) / cells >= SPARSE_BELOW_DENSITY:
            return features
        rows, columns = np.nonzero(features.matrix)
        return sparse_from_coordinates(rows, columns, features.matrix[rows, columns], shape=features.matrix.shape)
    if len(features.arrays()["values"]) / cells < SPARSE_BELOW_DENSITY:
        return features
    return DenseFeatures(features.gather(np.arange(features.num_rows)))


def normalize_rows(features: SparseFeatures) -> SparseFeatures:
    """Each row divided by its sum, as is usual for bags of words; rows of zeros stay. ``indptr`` must start at 0."""
    rows = targets_of(features.indptr)
    sums = np.bincount(rows, weights=features.values, minlength=features.num_rows)
    values = (features.values / sums[rows]).astype(np.float32)
    return SparseFeatures(features.indptr, features.columns, values, num_features=features.num_features)


def concatenate(parts: tuple[DenseFeatures | SparseFeatures, ...]) -> DenseFeatures | SparseFeatures:
    """All rows of all parts, in order. One part is handed back as it is; several must be of one form."""
    if len(parts) == 1:
        return parts[0]
    assert len({type(part) for part in parts}) == 1, "graphs of one data set share one form of features"
    pieces = [part.arrays() for part in parts]
    if isinstance(parts[0], DenseFeatures):
        return DenseFeatures(np.concatenate([piece["matrix"] for piece in pieces]))
    ends = np.cumsum([0, *(len(piece["values"]) for piece in pieces)])
    indptr = [piece["indptr"][1:] + end for piece, end in zip(pieces, ends, strict=False)]
    return SparseFeatures(
        indptr=np.concatenate([np.zeros(1, dtype=np.int64), *indptr]),
        columns=np.concatenate([piece["columns"] for piece in pieces]),
        values=np.concatenate([piece["values"] for piece in pieces]),
        num_features=parts[0].num_features,
    )


def put_together(pieces: Iterable[tuple[np.ndarray, SparseFeatures]]) -> SparseFeatures:
    """The rows of all pieces, each at its place: ``pieces`` are (places, features), and places are 0..rows - 1."""
    places, parts = zip(*pieces, strict=True)
    joined = concatenate(parts)
    assert isinstance(joined, SparseFeatures)
    return joined.take(np.argsort(np.concatenate(places)))


def windows(
    features: DenseFeatures | SparseFeatures, *, offsets: np.ndarray
) -> Iterator[DenseFeatures | SparseFeatures]:
    """The rows ``offsets[g]:offsets[g + 1]`` for every graph g, without copying (inverse of ``concatenate``)."""
    for start, end in itertools.pairwise(offsets):
        if isinstance(features, DenseFeatures):
            yield DenseFeatures(features.matrix[start:end])
        else:
            yield SparseFeatures(
                features.indptr[start : end + 1], features.columns, features.values, num_features=features.num_features
            )
