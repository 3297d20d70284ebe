"""What a model asks of the processes that hold the other rows of its graphs, and the answers of one process alone.

Models hold one of these and know nothing of ranks; the distributed forms live in ``workers.comm``. Both calls are
differentiable, and collective where there are many processes. The third question, keys and values of all rows for
dense attention, is ``workers.ops.biased_attention.Exchange``.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from workers.ops.row_edges import Halo


class PendingRows(Protocol):
    """Rows under way."""

    def rows(self) -> Tensor:
        """Wait for them: own rows [n, ...] followed by halo rows [halo, ...]. Called once."""


class NeighbourExchange(Protocol):
    """Brings the rows that edges start from."""

    def begin(self, x: Tensor, *, halo: Halo | None) -> PendingRows:
        """As ``extend``, in two halves: what is computed until ``rows()`` hides the transfer, in backward as well."""

    def extend(self, x: Tensor, *, halo: Halo | None) -> Tensor:
        """``x`` [n, ...] followed by its halo rows [halo, ...]; gradients of halo rows return to their owners."""


class SumExchange(Protocol):
    """Sums what every process has computed from its own rows."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over all processes, on each of them; the gradient is the sum of their gradients."""


class LocalNeighbours:
    """One process: every source is an own row."""

    def begin(self, x: Tensor, *, halo: Halo | None) -> PendingRows:
        """See ``NeighbourExchange``."""
        return _AllHere(self.extend(x, halo=halo))

    def extend(self, x: Tensor, *, halo: Halo | None) -> Tensor:
        """See ``NeighbourExchange``."""
        assert halo is None, "rows of other shards need an exchange between processes"
        return x


@dataclass(frozen=True, eq=False)
class _AllHere:
    x: Tensor

    def rows(self) -> Tensor:
        return self.x


class LocalSums:
    """One process: its sum is the whole sum."""

    def sum(self, x: Tensor) -> Tensor:
        """See ``SumExchange``."""
        return x
