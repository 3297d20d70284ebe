"""The halo: rows of other shards that the edges into own rows start from come here before message passing.

    begin  send own rows that others need, receive the halo         backward: wait for their gradients, add them up
    rows   own rows, then halo rows                                 backward: send the halo's gradients home

Between ``begin`` and ``rows`` the rows travel while the model works on something else (queries, say); in backward the
gradients do, because autograd runs what was called between the two before it runs ``begin``'s part. Sent per rank: the
rows that others need of it, once forward and as many gradients as its own halo has rows backward.

Backward is deterministic: the ranks' gradients are added in the order of the shards, rows within one are unique.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.comm.wire import Transfer, Wire
from workers.ops.exchanges import PendingRows
from workers.ops.row_edges import Halo

# Gradients that go home must not be taken for rows of another layer that come.
_ROWS_TAG, _GRADIENTS_TAG = 3, 4


class HaloExchange:
    """A ``NeighbourExchange`` (``workers.ops.exchanges``) over the ranks of ``axis``; all of them call it together."""

    def __init__(self, axis: Axis) -> None:
        self.wire = Wire(axis)

    def begin(self, x: Tensor, *, halo: Halo | None) -> PendingRows:
        """See ``NeighbourExchange``."""
        if halo is None:
            halo = Halo(send=(torch.empty(0, dtype=torch.int64, device=x.device),) * self.wire.axis.size, receive=())
        return _Pending(x, halo=halo, wire=self.wire)

    def extend(self, x: Tensor, *, halo: Halo | None) -> Tensor:
        """See ``NeighbourExchange``."""
        return self.begin(x, halo=halo).rows()


class _Pending:
    """Rows under way forward, gradients under way backward: whatever ``transfer`` is at the time."""

    def __init__(self, x: Tensor, *, halo: Halo, wire: Wire) -> None:
        self.halo = halo
        self.wire = wire
        self.transfer: Transfer | None = None
        self._own: Tensor | None = _Begin.apply(x, self)

    def rows(self) -> Tensor:
        """See ``PendingRows``."""
        assert self._own is not None, "rows are handed out once"
        own, self._own = self._own, None  # its graph holds this object: both would live until the next collection
        return _Rows.apply(own, self)

    def start(self, sends: Mapping[int, Tensor], *, counts: Mapping[int, int], like: Tensor, tag: int) -> None:
        receives = {place: like.new_empty(count, *like.shape[1:]) for place, count in counts.items()}
        self.transfer = self.wire.start(sends=sends, receives=receives, tag=tag)

    def wait(self) -> Mapping[int, Tensor]:
        assert self.transfer is not None, "nothing is under way"
        received, self.transfer = self.transfer.wait(), None
        return received


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: _Pending) -> Tensor:
        ctx.pending = pending
        sends = {place: x.index_select(0, rows) for place, rows in enumerate(pending.halo.send)}
        pending.start(sends, counts=dict(enumerate(pending.halo.receive)), like=x, tag=_ROWS_TAG)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        pending: _Pending = ctx.pending
        total = grad.clone()
        for place, arrived in pending.wait().items():
            total.index_add_(0, pending.halo.send[place], arrived)
        return total, None


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, pending: _Pending) -> Tensor:
        ctx.pending = pending
        return torch.cat([own, *pending.wait().values()])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        pending: _Pending = ctx.pending
        halo = pending.halo
        own, *parts = grad.split([len(grad) - halo.num_rows, *halo.receive])
        counts = {place: len(rows) for place, rows in enumerate(halo.send)}
        sends = {place: part.contiguous() for place, part in enumerate(parts)}
        pending.start(sends, counts=counts, like=grad, tag=_GRADIENTS_TAG)
        return own, None
