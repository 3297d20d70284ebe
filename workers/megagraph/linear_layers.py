"""The linear layers of a model, as a plan and a job's ``training.precision`` ask for them; applied from outside.

Linear layers hold nearly all of a transformer's products with weights. Two things may be asked of them:

    ledger                backward leaves weight gradients for later (``split_backward``)
    precision: bfloat16   a layer rounds its input, its weight and the gradient of its output to bfloat16, multiplies
                          (the hardware adds up in float32) and gives back float32

Weights, moments, gradients and their sums over micro-batches and ranks stay float32; so do residual sums, norms,
softmax, attention over pairs and edges, losses and the rows that travel. Queries, keys and values are thus sums of a
number of bfloat16 and a bias, in float32 tensors. What backward needs of a weight is the weight itself, rounded again:
of a sharded unit nothing stays gathered in between.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3; bfloat16 needs no scaling of losses
(Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019).
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from planner.profiles import Precision
from workers.megagraph.split_backward import WeightLedger, weight_gradients


def plain_linear_layers(module: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers of ``module`` that compute what torch's do, and no more."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
            yield layer


def apply_products(units: Iterable[nn.Module], *, precision: Precision, ledger: WeightLedger | None = None) -> None:
    """Let the linear layers of ``units`` multiply in ``precision`` and use ``ledger``; parameters keep their names."""
    if precision == "float32" and ledger is None:
        return
    for unit in units:
        for layer in plain_linear_layers(unit):
            layer.forward = partial(_multiply, layer, ledger, precision)


def _multiply(layer: nn.Linear, ledger: WeightLedger | None, precision: Precision, x: Tensor) -> Tensor:
    operands = torch.bfloat16 if precision == "bfloat16" else x.dtype
    return _Product.apply(x, layer.weight, layer.bias, layer, ledger, operands)


class _Product(torch.autograd.Function):
    """``x W^T + b`` of operands of type ``operands``; see the module for its backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layer: nn.Linear,
        ledger: WeightLedger | None,
        operands: torch.dtype,
    ) -> Tensor:
        rounded = x.to(operands)
        ctx.save_for_backward(rounded, weight)
        ctx.layer, ctx.ledger, ctx.operands = layer, ledger, operands
        if operands == x.dtype:
            return linear(x, weight, bias)
        y = linear(rounded, weight.to(operands)).to(x.dtype)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rounded = grad.to(ctx.operands)
        grad_x = (rounded @ weight.to(ctx.operands)).to(grad.dtype) if ctx.needs_input_grad[0] else None
        if ctx.ledger is not None and ctx.ledger.leave(ctx.layer, x=x, grad=grad):
            return grad_x, *(None,) * 5
        grad_weight, grad_bias = weight_gradients(x, grad)
        return grad_x, grad_weight, grad_bias if ctx.layer.bias is not None else None, None, None, None
