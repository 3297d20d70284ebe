"""Ulysses: ranks of a run of shards share the heads. Each attends with its heads for the rows of the whole run.

Source: Jacobs et al., "DeepSpeed Ulysses", 2023. Before attention a rank gives every other rank of the run that one's
heads of its own rows, and receives its own heads of their rows; after attention the output goes back the same way, and
gradients travel likewise. Sent per rank of U and layer, forward as backward: 4 n d (U-1)/U elements of n own rows.

Within a run only. Over several runs, keys and values of the own heads go round a ring (``RingExchange`` with these
heads): the two-dimensional form. Shards may be of any size, also empty. Nothing is worked on while rows travel:
attention needs all of them, and what a model computes beside it, it computes before or after.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.comm.wire import Wire
from workers.ops.row_layout import RowLayout

_TAG = 5


class HeadShards:
    """``Heads`` (``workers.ops.heads``) of which each rank of ``axis``, a run of neighbouring shards, has its part.

    The number of heads must be a multiple of the ranks (``planner.plan.check_heads`` says so to users).
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self.wire = Wire(axis)

    def layout(self, layout: RowLayout) -> RowLayout:
        """See ``Heads``."""
        return layout.joined(self._axis.size)

    def own(self, num_heads: int) -> slice:
        """See ``Heads``."""
        return self._heads(self._axis.index, num_heads)

    def to_heads(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """See ``Heads``."""
        return _Swap.apply(x, lambda rows: self._spread(rows, layout), lambda heads: self._collect(heads, layout))

    def to_rows(self, x: Tensor, *, layout: RowLayout) -> Tensor:
        """See ``Heads``."""
        return _Swap.apply(x, lambda heads: self._collect(heads, layout), lambda rows: self._spread(rows, layout))

    def _spread(self, x: Tensor, layout: RowLayout) -> Tensor:
        """[n, c, H, d_h] of own rows into [run's rows, c, own heads, d_h]."""
        parts = [x[:, :, self._heads(member, x.shape[2])] for member in range(self._axis.size)]
        rows = [layout.num_rows(shard) for shard in self._shards(layout)]
        arrived = self._swap(parts, shapes=[(count, *parts[0].shape[1:]) for count in rows])
        by_graph = [
            part[layout.rows(shard, graph)]
            for graph in range(layout.num_graphs)
            for shard, part in zip(self._shards(layout), arrived, strict=True)
        ]
        return torch.cat(by_graph) if by_graph else parts[0]

    def _collect(self, x: Tensor, layout: RowLayout) -> Tensor:
        """[run's rows, c, own heads, d_h] into [n, c, H, d_h] of own rows."""
        joined = self.layout(layout)
        runs = x.split([size for graph in range(layout.num_graphs) for size in self._sizes(layout, graph)])
        width = self._axis.size
        parts = [torch.cat([x[:0], *runs[member::width]]) for member in range(width)]
        assert len(x) == joined.num_rows(joined.shard), "rows of another layout"
        shape = (layout.num_rows(layout.shard), *x.shape[1:])
        return torch.cat(self._swap(parts, shapes=[shape] * width), dim=2)

    def _swap(self, parts: list[Tensor], *, shapes: list[tuple[int, ...]]) -> list[Tensor]:
        """Give ``parts[member]`` to each member of the run; what they gave, of ``shapes[member]``."""
        here = self._axis.index
        others = [member for member in range(self._axis.size) if member != here]
        arrived = self.wire.start(
            sends={member: parts[member].contiguous() for member in others},
            receives={member: parts[here].new_empty(shapes[member]) for member in others},
            tag=_TAG,
        ).wait()
        return [parts[here] if member == here else arrived[member] for member in range(self._axis.size)]

    def _shards(self, layout: RowLayout) -> range:
        first = layout.shard - self._axis.index
        return range(first, first + self._axis.size)

    def _sizes(self, layout: RowLayout, graph: int) -> list[int]:
        return [layout.sizes[shard][graph] for shard in self._shards(layout)]

    def _heads(self, member: int, num_heads: int) -> slice:
        assert num_heads % self._axis.size == 0, f"{num_heads} heads for {self._axis.size} ranks"
        width = num_heads // self._axis.size
        return slice(member * width, (member + 1) * width)


class _Swap(torch.autograd.Function):
    """A permutation of elements over ranks; its gradient goes the inverse way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grad), None, None
