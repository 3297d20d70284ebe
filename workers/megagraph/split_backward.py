"""Backward in two parts: the gradient of a stage's input first, the weight gradients when there is time.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2. A linear layer whose backward runs while a
``WeightLedger`` collects returns the gradient of its input alone, and leaves (input, gradient of its output) in the
ledger; ``settle`` turns these into weight gradients. Linear layers hold nearly all weights of a transformer; tables,
norms and the attention bias get their gradients in the first part, where they fall off and cost little.

Nothing is run twice and no autograd graph outlives the first part, so attention keeps its own backward, recomputed
units recompute once, and the second part needs no other rank.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True)
class Owed:
    """A weight gradient that is still to be made."""

    layer: nn.Linear
    x: Tensor  # [..., in]
    grad: Tensor  # [..., out]


@dataclass
class WeightLedger:
    """Collects what backward leaves for later. One ledger serves all layers of a rank."""

    _open: list[Owed] | None = field(default=None)

    @contextmanager
    def collect(self) -> Iterator[list[Owed]]:
        """While open, linear layers leave their weight gradients in the list that is given."""
        self._open = []
        try:
            yield self._open
        finally:
            self._open = None

    def leave(self, layer: nn.Linear, *, x: Tensor, grad: Tensor) -> bool:
        """Put off the weight gradient of ``layer``; False when nothing is collected now."""
        if self._open is None:
            return False
        self._open.append(Owed(layer=layer, x=x.detach(), grad=grad))  # detached: what led to x may go
        return True


@torch.no_grad()
def settle(owed: list[Owed]) -> None:
    """Make the weight gradients that were put off, and add them to the layers'."""
    for debt in owed:
        for parameter, gradient in zip(
            (debt.layer.weight, debt.layer.bias), _weight_gradients(debt.x, debt.grad), strict=True
        ):
            if parameter is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def apply_split_backward(units: Iterable[nn.Module], *, ledger: WeightLedger) -> None:
    """Let the linear layers of ``units`` use ``ledger``; nothing else of them changes."""
    for unit in units:
        for module in unit.modules():
            if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:  # else it computes more
                module.forward = partial(_forward, module, ledger)


def _forward(layer: nn.Linear, ledger: WeightLedger, x: Tensor) -> Tensor:
    return _SplitLinear.apply(x, layer.weight, layer.bias, layer, ledger)


class _SplitLinear(torch.autograd.Function):
    """``x W^T + b``; see the module for its backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Linear, ledger: WeightLedger
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.ledger = layer, ledger
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        if ctx.ledger.leave(ctx.layer, x=x, grad=grad):
            return grad_x, None, None, None, None
        grad_weight, grad_bias = _weight_gradients(x, grad)
        return grad_x, grad_weight, grad_bias if ctx.layer.bias is not None else None, None, None


def _weight_gradients(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return grad.T @ x, grad.sum(dim=0)
