"""Weights of sharded linear layers that travel as bfloat16 and are float32 at both ends.

FSDP asks a rank's part of a parameter, where it has the two functions below, what to send when a unit is gathered and
what to make of what arrived (torch's ``_fsdp_param.py``, "Note: FSDP tensors"; it looks for them once more before the
first gathering). Of a weight that is multiplied as bfloat16, half the bytes say all. ``MixedPrecisionPolicy`` would
round all parameters of a unit, norms, tables and biases too, and add up gradients of two types.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


def gather_rounded(layers: Iterable[nn.Linear]) -> None:
    """Let the weights of ``layers``, those that are sharded, travel as bfloat16."""
    for layer in layers:
        if isinstance(layer.weight, DTensor):
            own = layer.weight._local_tensor  # the part itself: ``to_local`` gives a view of a parameter's
            own.fsdp_pre_all_gather, own.fsdp_post_all_gather = _send, _receive


def _send(
    mesh: DeviceMesh, outer_size: torch.Size, outer_stride: Any, layer: nn.Linear, policy: Any
) -> tuple[tuple[Tensor], None]:
    """This rank's rows of the weight, in bfloat16, as many as the fullest part of ``mesh`` has."""
    own = layer.weight.to_local()
    rows = -(-outer_size[0] // mesh.size())
    rounded = own.new_zeros(rows, *outer_size[1:], dtype=torch.bfloat16)
    rounded[: len(own)] = own
    return (rounded,), None


def _receive(
    gathered: tuple[Tensor], metadata: None, dtype: torch.dtype, *, out: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]] | None:
    """The whole weight of type ``dtype``, filler rows behind it; or the same into ``out``, which has none."""
    (rounded,) = gathered
    if out is None:
        whole = rounded.to(dtype)
        return whole, (whole,)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):  # backward has kept it
        out.copy_(rounded[: len(out)])
    return None
