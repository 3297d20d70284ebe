"""Edges into the rows that lie here, and the rows of other shards that they start from.

A shard owns rows; an edge belongs to the row that it points to. Most sources are own rows, too; the others form the
halo, which an exchange brings before every message passing (``workers.ops.exchanges.NeighbourExchange``). Local
numbers: own rows 0..n-1 in the order of the layout, then the halo rows, shard after shard.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
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

    def to(self, device: torch.device) -> "Halo":
        """The same on ``device``."""
        return Halo(send=tuple(rows.to(device) for rows in self.send), receive=self.receive)


@dataclass(frozen=True)
class RowEdges:
    """Edges in CSR over the n own rows: those into row i start at ``sources[indptr[i]:indptr[i + 1]]``."""

    indptr: Tensor  # int64 [n + 1]
    sources: Tensor  # int64 [e], own rows, then halo rows
    types: Tensor | None = None  # int64 [e], where the data set knows kinds of edges
    halo: Halo | None = None  # None where everything lies here

    @property
    def num_rows(self) -> int:
        """Own rows n."""
        return len(self.indptr) - 1

    @property
    def num_sources(self) -> int:
        """Rows that an edge may start from: own rows and halo rows."""
        return self.num_rows + (0 if self.halo is None else self.halo.num_rows)

    def to(self, device: torch.device) -> "RowEdges":
        """The same on ``device``."""
        return RowEdges(
            indptr=self.indptr.to(device),
            sources=self.sources.to(device),
            types=None if self.types is None else self.types.to(device),
            halo=None if self.halo is None else self.halo.to(device),
        )

    @cached_property
    def targets(self) -> Tensor:
        """The own row of every edge, int64 [e], ascending."""
        rows = torch.arange(self.num_rows, device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff(), output_size=len(self.sources))

    @cached_property
    def by_source(self) -> "EdgesBySource":
        """The same edges in CSR over their sources: what backward needs. Sorted once, then kept."""
        counts = torch.bincount(self.sources, minlength=self.num_sources)
        order = torch.argsort(self.sources, stable=True)
        return EdgesBySource(
            indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]), order=order, targets=self.targets[order]
        )


@dataclass(frozen=True)
class EdgesBySource:
    """Edges in CSR over the rows that they start from: edge ``order[i]`` of ``RowEdges`` is the i-th here."""

    indptr: Tensor  # int64 [n + halo + 1]
    order: Tensor  # int64 [e]
    targets: Tensor  # int64 [e], own rows
