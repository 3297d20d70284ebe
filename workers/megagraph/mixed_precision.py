"""Products in bfloat16, everything else in float32: what ``training.precision: bfloat16`` asks of a model.

Linear layers hold nearly all of a transformer's products with weights. Each rounds its input and its weight to
bfloat16, multiplies (the hardware adds up in float32) and gives back float32. Weights, moments, gradients and their
sums over micro-batches and ranks stay float32; so do residual sums, norms, softmax, attention over pairs and edges,
losses and whatever travels. Queries, keys and values are thus numbers of bfloat16 in float32 tensors.

Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3; bfloat16 needs no scaling of losses
(Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019).
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from planner.errors import PlanInvalidError
from planner.plan import MegaGraphPlan
from planner.profiles import Precision


def apply_precision(units: Iterable[nn.Module], *, precision: Precision) -> None:
    """Let the linear layers of ``units`` multiply in ``precision``; parameters keep their type and names."""
    if precision == "float32":
        return
    for unit in units:
        for module in unit.modules():
            if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:  # else it computes more
                module.forward = partial(_multiply, module)


def check_precision(plan: MegaGraphPlan, *, precision: Precision) -> None:
    """Raises ``PlanInvalidError`` for a plan that splits backward: its linear layers put off float32 products."""
    if precision != "float32" and any(action.kind == "W" for actions in plan.actions for action in actions):
        raise PlanInvalidError(
            f"training.precision {precision!r} takes whole backwards, the plan splits them into I and W: choose a"
            " schedule of F and B, or precision float32"
        )


def _multiply(layer: nn.Linear, x: Tensor) -> Tensor:
    y = linear(x.to(torch.bfloat16), layer.weight.to(torch.bfloat16)).to(x.dtype)
    return y if layer.bias is None else y + layer.bias
