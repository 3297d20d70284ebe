"""The ring: every rank's keys and values come by at every other rank, one shard at a time.

Source: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", ICLR 2024. In
each of P steps a rank works on one shard while the next one is under way from its predecessor. In backward the shards
go round again, and each takes along the gradient that it has gathered so far; after P steps that gradient is home.
Sent per rank and layer, of Nd/P elements each for keys and values: 2(Nd/P)(P-1) forward, 2(Nd/P)(2P-1) backward.

Shards may be of any size, also empty: all ranks know all sizes from the layout, and nothing is sent for an empty one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from workers.comm.axis import Axis
from workers.comm.wire import Transfer, Wire
from workers.ops.heads import AllHeads, Heads
from workers.ops.row_layout import RowLayout

# The two streams from one rank to the next must not be taken for each other.
_BLOCK_TAG, _SUM_TAG = 1, 2


class RingExchange:
    """An ``Exchange`` (``workers.ops.biased_attention``) over the ranks of ``axis``; all of them call it together.

    With heads that are shared out (``workers.comm.ulysses``), the ring goes over the runs of shards.
    """

    def __init__(self, axis: Axis, *, heads: Heads | None = None) -> None:
        self._axis = axis
        self.heads = AllHeads() if heads is None else heads
        self.wire = Wire(axis)

    def visit(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], None]) -> None:
        """See ``Exchange``. The next shard travels while ``visitor`` works."""
        steps = self._axis.size
        for step in range(steps):
            arriving = self._pass_on(block, step, layout, tag=_BLOCK_TAG) if step + 1 < steps else None
            visitor(self._shard_at(step), block)
            if arriving is not None:
                block = arriving.wait()

    def visit_and_sum(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], Tensor]) -> Tensor:
        """See ``Exchange``. A shard's sum runs over the ranks in the order of the ring, so it is deterministic."""
        steps = self._axis.size
        arriving_sum = None
        for step in range(steps):
            arriving = self._pass_on(block, step, layout, tag=_BLOCK_TAG) if step + 1 < steps else None
            total = visitor(self._shard_at(step), block)
            if arriving_sum is not None:
                total += arriving_sum.wait()
            arriving_sum = self._pass_on(total, step, layout, tag=_SUM_TAG)
            if arriving is not None:
                block = arriving.wait()
        assert arriving_sum is not None, "a ring has at least one rank"
        return arriving_sum.wait()

    def _shard_at(self, step: int) -> int:
        """Whose shard is here in ``step``: at first the own, then that of the predecessor, and so on."""
        return (self._axis.index - step) % self._axis.size

    def _pass_on(self, tensor: Tensor, step: int, layout: RowLayout, *, tag: int) -> "_Arriving":
        """Send what belongs to this step's shard to the next rank; what arrives belongs to the next step's shard."""
        if self._axis.size == 1:
            return _Arriving(tensor, transfer=None)
        rows = layout.num_rows(self._shard_at(step + 1))
        received = tensor.new_empty(rows, *tensor.shape[1:])
        following, preceding = ((self._axis.index + offset) % self._axis.size for offset in (+1, -1))
        return _Arriving(
            received, transfer=self.wire.start(sends={following: tensor}, receives={preceding: received}, tag=tag)
        )


@dataclass(frozen=True)
class _Arriving:
    """A shard under way."""

    received: Tensor
    transfer: Transfer | None

    def wait(self) -> Tensor:
        if self.transfer is not None:
            self.transfer.wait()
        return self.received
