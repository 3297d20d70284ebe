"""Features that come in pieces of some thousand rows, from several places: no more than a piece is ever there twice."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from workers.data.features import DenseFeatures, SparseFeatures, put_together

ROWS_PER_PIECE = 4096
# Where its rows belong in what was asked for, and the rows.
Piece = tuple[np.ndarray, DenseFeatures | SparseFeatures]


class FeaturesInPieces(ABC):
    """The questions of ``workers.data.graph.Features`` about rows, answered from ``pieces``."""

    num_rows: int
    num_features: int
    is_sparse: bool  # whether pieces are

    @abstractmethod
    def pieces(self, rows: np.ndarray) -> Iterator[Piece]:
        """The features of ``rows``, in pieces that together fill all places."""

    def take(self, rows: np.ndarray) -> DenseFeatures | SparseFeatures:
        """The features of ``rows``, a copy. Raises what ``pieces`` does."""
        if not self.is_sparse:
            return DenseFeatures(self.gather(rows))
        return put_together((places, piece) for places, piece in self.pieces(rows) if isinstance(piece, SparseFeatures))

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Float32 [len(rows), F], dense. Raises what ``pieces`` does."""
        out = np.empty((len(rows), self.num_features), dtype=np.float32)
        for places, piece in self.pieces(rows):
            out[places] = piece.matrix if isinstance(piece, DenseFeatures) else piece.gather(np.arange(len(places)))
        return out


def pieces_of(features: DenseFeatures | SparseFeatures, rows: np.ndarray, places: np.ndarray) -> Iterator[Piece]:
    """``rows`` of ``features``, which belong to ``places``."""
    for start in range(0, max(1, len(rows)), ROWS_PER_PIECE):  # at least one, which may be empty
        part = slice(start, start + ROWS_PER_PIECE)
        yield places[part], features.take(rows[part])
