"""The sum over all ranks of an axis as a differentiable function: what linear attention, pooling and norms ask for.

Every rank's loss depends on the sum, and every rank's gradient of it counts: backward is the same sum, of gradients.
"""

from typing import Any

import torch
from torch import Tensor

from workers.comm.axis import Axis


class AxisSums:
    """A ``SumExchange`` (``workers.ops.exchanges``) over the ranks of ``axis``; all of them call it together.

    ``bytes_summed`` counts what this rank has put into sums, forward and backward.
    """

    def __init__(self, axis: Axis) -> None:
        self._axis = axis
        self.bytes_summed = 0

    def sum(self, x: Tensor) -> Tensor:
        """See ``SumExchange``."""
        return _Sum.apply(x, self)

    def of(self, x: Tensor) -> Tensor:
        """The sum of ``x`` as a fresh tensor, without autograd."""
        total = x.clone(memory_format=torch.contiguous_format)
        self._axis.sum_in_place(total)
        self.bytes_summed += total.nbytes
        return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: AxisSums) -> Tensor:
        ctx.sums = sums
        return sums.of(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.sums.of(grad), None
