"""Edges into the rows that lie here, and the rows of other shards that they start from.

A shard owns rows; an edge belongs to the row that it points to. Most sources are own rows, too; the others form the
halo, which an exchange brings before every message passing (``workers.ops.exchanges.NeighbourExchange``). Local
numbers: own rows 0..n-1 in the order of the layout, then the halo rows, shard after shard.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Halo:
    """Which rows travel: ``send[s]`` int64, own rows that shard ``s`` needs; ``receive[s]``, how many come from it."""

    send: tuple[Tensor, ...]
    receive: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """Rows that come here from all other shards."""
        return sum(self.receive)


@dataclass(frozen=True)
class RowEdges:
    """Edges in CSR over the n own rows: those into row i start at ``sources[indptr[i]:indptr[i + 1]]``."""

    indptr: Tensor  # int64 [n + 1]
    sources: Tensor  # int64 [e], own rows, then halo rows
    types: Tensor | None = None  # int64 [e], where the data set knows kinds of edges
    halo: Halo | None = None  # None where everything lies here
