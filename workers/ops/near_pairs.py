"""The distance index of attention in one of two forms: a bucket of every pair, or of the near pairs alone.

    dense   uint8 [n, m]: a byte a pair
    near    ``NearPairs``: CSR, 5 bytes a near pair and 8 a row; every other pair is in the far bucket

Both say the same, and whatever takes one takes the other (``PairBuckets``): tiles are cut from either, so results
agree bit for bit. Shapes: n rows, m columns (keys).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class NearPairs:
    """The buckets of the near pairs of n rows, and that of all others.

    The pairs of row i stand at ``indptr[i]:indptr[i + 1]``, by ascending column. ``num_columns`` columns are meant,
    from ``first_column`` on, so that some columns of an index (the keys of one shard) share its memory.
    """

    indptr: Tensor  # int64 [n + 1]
    columns: Tensor  # int32 [pairs]
    buckets: Tensor  # uint8 [pairs]
    far: int
    num_columns: int
    first_column: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(n, m), as that of the dense form."""
        return len(self.indptr) - 1, self.num_columns

    @property
    def device(self) -> torch.device:
        """Where the pairs are."""
        return self.indptr.device

    def among(self, columns: slice) -> "NearPairs":
        """The index of some of these columns, in the same memory."""
        first, last, _ = columns.indices(self.num_columns)
        return replace(self, first_column=self.first_column + first, num_columns=max(0, last - first))

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The dense form of some rows, uint8 [r, m]."""
        first, last, _ = rows.indices(self.shape[0])
        ends = self.indptr[first : last + 1]
        pairs = slice(int(ends[0]), int(ends[-1]))
        row = torch.repeat_interleave(ends.diff(), output_size=pairs.stop - pairs.start)
        column = self.columns[pairs] - self.first_column
        meant = (column >= 0) & (column < self.num_columns)
        tile = torch.full((last - first, self.num_columns), self.far, dtype=torch.uint8, device=self.device)
        tile[row[meant], column[meant].long()] = self.buckets[pairs][meant]
        return tile


PairBuckets = Tensor | NearPairs


def among_columns(buckets: PairBuckets, columns: slice) -> PairBuckets:
    """Some columns of an index, in the same memory."""
    return buckets.among(columns) if isinstance(buckets, NearPairs) else buckets[:, columns]


def dense_rows(buckets: PairBuckets, rows: slice) -> Tensor:
    """Some rows of an index in the dense form, uint8 [r, m]."""
    return buckets.dense(rows) if isinstance(buckets, NearPairs) else buckets[rows]
