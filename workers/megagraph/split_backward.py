"""Backward in two parts: the gradient of a stage's input first, the weight gradients when there is time.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2. A linear layer (``linear_layers``) whose
backward runs while a ``WeightLedger`` collects returns the gradient of its input alone, and leaves (input, gradient of
its output) in the ledger; ``settle`` turns these into weight gradients. Linear layers hold nearly all weights of a
transformer; tables, norms and the attention bias get their gradients in the first part, where they fall off and cost
little.

Nothing is run twice and no autograd graph outlives the first part, so attention keeps its own backward, recomputed
units recompute once, and the second part needs no other rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Owed:
    """A weight gradient that is still to be made."""

    layer: nn.Linear
    x: Tensor  # [..., in], of the type that is multiplied
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
            (debt.layer.weight, debt.layer.bias), weight_gradients(debt.x, debt.grad), strict=True
        ):
            if parameter is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def weight_gradients(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Of a linear layer: (gradient of its weight [out, in], of its bias [out]), of the type of ``grad``.

    The product is of numbers of the type of ``x`` [..., in]; ``grad`` is [..., out].
    """
    x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (grad.to(x.dtype).T @ x).to(grad.dtype), grad.sum(dim=0)
