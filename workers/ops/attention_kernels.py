"""Which kernel computes attention: the choice stands here, once.

Kernels are interchangeable: same signatures, same results up to rounding (each is held against float64), the table's
gradient deterministic, the mask of dropout equal bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from workers.ops import attend_block as plain
from workers.ops.native import native_library
from workers.ops.native_attention import NativeAttention


@dataclass(frozen=True)
class AttentionKernel:
    """The two functions of ``workers.ops.attend_block``, in some form."""

    attend_block: Callable[..., tuple[Tensor, Tensor]]
    attend_block_backward: Callable[..., Tensor]


PLAIN = AttentionKernel(plain.attend_block, plain.attend_block_backward)


def kernel_for(q: Tensor) -> AttentionKernel:
    """The fastest kernel for queries like ``q``: native on CPU in float32 and float64 where there is a library."""
    is_native = q.device.type == "cpu" and q.dtype in (torch.float32, torch.float64)
    return (is_native and _native()) or PLAIN


def native_kernel(instruction_set: str | None = None) -> AttentionKernel:
    """The native kernel in the form for ``instruction_set``, the best one by default."""
    library = native_library()
    assert library, "no native library is installed"
    native = NativeAttention(library, instruction_set or library.best_instruction_set)
    return AttentionKernel(native.attend_block, native.attend_block_backward)


@cache
def _native() -> AttentionKernel | None:
    return native_kernel() if native_library() else None
