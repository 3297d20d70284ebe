"""Which kernel computes attention: the choice stands here, once.

    native   the compiled library, on CPU in float32 and float64        triton   on CUDA in float32, bfloat16, float16
    plain    torch alone, everywhere                                    flex     torch's FlexAttention, only when asked

Kernels are interchangeable: same signatures, same results up to rounding (each is held against float64), the table's
gradient deterministic, the mask of dropout equal bit for bit. FlexAttention alone has neither of the last two.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from workers.errors import KernelUnavailableError
from workers.ops import attend_block as plain
from workers.ops.native import native_library
from workers.ops.native_attention import NativeAttention

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AttentionKernel:
    """The two functions of ``workers.ops.attend_block``, in some form."""

    attend_block: Callable[..., tuple[Tensor, Tensor]]
    attend_block_backward: Callable[..., Tensor]


PLAIN = AttentionKernel(plain.attend_block, plain.attend_block_backward)


def kernel_for(q: Tensor) -> AttentionKernel:
    """The fastest kernel for queries like ``q`` that gives all guarantees, where what it needs is installed."""
    if q.device.type == "cuda":
        return (q.dtype in _TRITON_TYPES and _triton()) or PLAIN
    return (q.device.type == "cpu" and q.dtype in _NATIVE_TYPES and _native()) or PLAIN


def named_kernel(name: str, *, device: torch.device, dtype: torch.dtype) -> AttentionKernel | None:
    """The kernel ``name`` for tensors of ``dtype`` on ``device``; None for ``auto``: ``kernel_for`` chooses.

    Raises ``KernelUnavailableError`` where it does not run.
    """
    if name == "auto":
        return None
    if name == "plain":
        return PLAIN
    find, device_type, dtypes, needed = _BY_NAME[name]
    if device.type != device_type or dtype not in dtypes:
        raise KernelUnavailableError(
            f"attention_kernel {name} was asked for on {device.type} in {dtype}; it runs on {device_type} in"
            f" {', '.join(map(str, dtypes))}: ask for auto or plain"
        )
    if (kernel := find()) is None:
        raise KernelUnavailableError(f"attention_kernel {name} needs {needed}; install it, or ask for auto or plain")
    return kernel


def native_kernel(instruction_set: str | None = None) -> AttentionKernel:
    """The native kernel in the form for ``instruction_set``, the best one by default."""
    library = native_library()
    assert library, "no native library is installed"
    native = NativeAttention(library, instruction_set or library.best_instruction_set)
    return AttentionKernel(native.attend_block, native.attend_block_backward)


@cache
def _native() -> AttentionKernel | None:
    return native_kernel() if native_library() else None


@cache
def _triton() -> AttentionKernel | None:
    if find_spec("triton") is None:
        _log.warning("attention on CUDA: plain torch, as triton is not installed; pip install triton")
        return None
    from workers.ops import triton_attention  # only here is it sure that there is a triton

    _log.info("attention on CUDA: triton %s", triton_attention.VERSION)
    return AttentionKernel(triton_attention.attend_block, triton_attention.attend_block_backward)


@cache
def _flex() -> AttentionKernel:
    from workers.ops.flex_attention import compiled_flex_attention  # importing it imports torch's compiler

    _log.warning(
        "attention on CUDA: FlexAttention, as asked for: no dropout of weights, and the gradient of the distance table"
        " is summed by atomics, so runs differ in their last bits"
    )
    flex = compiled_flex_attention()
    return AttentionKernel(flex.attend_block, flex.attend_block_backward)


_NATIVE_TYPES = (torch.float32, torch.float64)
_TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_BY_NAME: dict[str, tuple[Callable[[], AttentionKernel | None], str, tuple[torch.dtype, ...], str]] = {
    "native": (_native, "cpu", _NATIVE_TYPES, "the compiled library of this package, which takes a C++20 compiler"),
    "triton": (_triton, "cuda", _TRITON_TYPES, "the package triton"),
    "flex": (_flex, "cuda", _TRITON_TYPES, "torch's compiler"),
}
