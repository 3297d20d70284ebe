"""What a unit must give back, held to at every call: a module of the user's own may say one thing and do another.

Rows of another number or width would meet the wrong rows of the next stage, or leave its ranks waiting for the rest.
"""

import torch
from torch import Tensor

from workers.errors import ModelInvalidError


def check_output(output: object, *, unit: str, shape: tuple[int, int], dtype: torch.dtype, what: str) -> Tensor:
    """``output`` of ``unit``, which must be ``shape`` (``what`` says of what) of type ``dtype``.

    Raises ``ModelInvalidError`` that names the unit, what it gave, and what it must give.
    """
    if not isinstance(output, Tensor):
        found = type(output).__name__
    elif output.shape != shape:
        found = f"a tensor of shape {list(output.shape)}"
    elif output.dtype != dtype:
        found = f"a tensor of {_name(output.dtype)}"
    else:
        return output
    raise ModelInvalidError(
        f"unit {unit!r} must give a tensor [{shape[0]}, {shape[1]}] of {_name(dtype)}, {what}; it gave {found}: change"
        " what it returns, or hidden_size in the spec"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
