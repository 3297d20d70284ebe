"""Attention over one block of keys on CUDA, with the signatures of ``workers.ops.attend_block``; needs Triton.

The kernels (``triton_kernels``) take float32, bfloat16 and float16. Products of the halves are summed in float32, which
outputs, log-sum-exp and gradients are in; those of float32 are exact products (no TF32). The table's gradient is
written as one sum per block of rows, in float64, and added up in a fixed order: no atomics. Tiles are cut by shapes
alone, never by what was fastest in some run, so every run gives the same bits.
"""

import math
from collections.abc import Mapping

import torch
import triton
from torch import Tensor

from workers.ops.attend_block import attended_to_nothing, backward_of_nothing, sum_type
from workers.ops.attention_dropout import PairDropout
from workers.ops.near_pairs import PairBuckets, dense_rows
from workers.ops.triton_kernels import forward_kernel, key_gradient_kernel, query_gradient_kernel

VERSION = triton.__version__
# Bytes of a head up to which tiles of 64 x 64 fit the registers of a program, as the assembler for compute capability
# 8.0 and 9.0 says; above, they are 32 x 32. Sums of float32, without tensor cores, take twice the threads (not timed).
_NARROW_BYTES = 128
# Sums by bucket that a program holds for each of its rows; larger tables take as many programs (chosen, not measured).
_LARGEST_GROUP = 32


def attend_block(
    q: Tensor, *, k: Tensor, v: Tensor, buckets: PairBuckets, table: Tensor, dropout: PairDropout | None = None
) -> tuple[Tensor, Tensor]:
    """See ``workers.ops.attend_block.attend_block``. A bucket past the table gives NaN."""
    if not len(q) or not len(k):
        return attended_to_nothing(q)
    dtype = sum_type(q.dtype)
    out, lse = q.new_empty(q.shape, dtype=dtype), q.new_empty(q.shape[:2], dtype=dtype)
    rows, shapes = _rows(q=q, k=k, v=v, out=out), _tiles(q)
    with torch.cuda.device_of(q):
        forward_kernel[triton.cdiv(len(q), shapes["ROWS"]), q.shape[1]](
            **rows, lse=lse, **_pairs(q, k=k, buckets=buckets, table=table, dropout=dropout), **shapes
        )
    return out, lse


def attend_block_backward(
    grad_out: Tensor,
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    buckets: PairBuckets,
    table: Tensor,
    lse: Tensor,
    delta: Tensor,
    grad_q: Tensor,
    grad_k: Tensor,
    grad_v: Tensor,
    dropout: PairDropout | None = None,
) -> Tensor:
    """See ``workers.ops.attend_block.attend_block_backward``."""
    assert all(x.stride(-1) == 1 for x in (grad_q, grad_k, grad_v)), "written to in place"
    num_heads, num_buckets = table.shape
    if not len(q) or not len(k):
        return backward_of_nothing(table, grad_k=grad_k, grad_v=grad_v)
    tiles = _tiles(q)
    blocks = triton.cdiv(len(q), tiles["ROWS"])
    group = min(_LARGEST_GROUP, triton.next_power_of_2(num_buckets))
    partial_sums = q.new_empty(blocks, num_heads, num_buckets, dtype=torch.float64)
    read = _rows(grad_out=grad_out, q=q, k=k, v=v) | {"lse": lse.contiguous(), "delta": delta.contiguous()}
    read |= _pairs(q, k=k, buckets=buckets, table=table, dropout=dropout) | tiles
    with torch.cuda.device_of(q):
        query_gradient_kernel[blocks, num_heads, triton.cdiv(num_buckets, group)](
            **read, **_rows(grad_q=grad_q), partial_sums=partial_sums, GROUP=group
        )
        key_gradient_kernel[triton.cdiv(len(k), tiles["KEYS"]), num_heads](
            **read, **_rows(grad_k=grad_k, grad_v=grad_v)
        )
    return partial_sums.sum(dim=0)


def _rows(**rows: Tensor) -> dict[str, Tensor | int]:
    """Each of ``rows`` [*, H, d_h] and its strides, as the kernels name them."""
    named: dict[str, Tensor | int] = {}
    for name, x in rows.items():
        x = x if x.stride(-1) == 1 else x.contiguous()
        named |= {name: x, f"{name}_row": x.stride(0), f"{name}_head": x.stride(1)}
    return named


def _pairs(
    q: Tensor, *, k: Tensor, buckets: PairBuckets, table: Tensor, dropout: PairDropout | None
) -> Mapping[str, Tensor | float | None]:
    """What the kernels know of pairs: their numbers, the bias, the mask of dropout."""
    assert buckets.shape == (len(q), len(k))
    tiles = dense_rows(buckets, slice(None))  # of near pairs, a byte for every pair of this block
    assert tiles.dtype == torch.uint8
    tiles = tiles if tiles.stride(-1) == 1 else tiles.contiguous()
    return {
        "num_rows": len(q),
        "num_keys": len(k),
        "num_heads": q.shape[1],
        "num_buckets": table.shape[1],
        "scale": 1 / math.sqrt(q.shape[2]),
        "buckets": tiles,
        "buckets_row": tiles.stride(0),
        "table": table.contiguous(),
        "row_bits": dropout.row_bits.contiguous() if dropout else None,
        "column_bits": dropout.column_bits.contiguous() if dropout else None,
        "threshold": dropout.threshold if dropout else 0,
        "keep_scale": dropout.keep_scale if dropout else 1.0,
        "DROPS": dropout is not None,
    }


def _tiles(q: Tensor) -> dict[str, int]:
    """The shape of a tile, by the head size and number type of ``q`` alone."""
    head_size = q.shape[2]
    width = max(16, triton.next_power_of_2(head_size))  # of what tensor cores take
    is_narrow = width * q.element_size() <= _NARROW_BYTES
    side = 64 if is_narrow else 32
    num_warps = 8 if is_narrow and q.element_size() == 4 else 4
    return {
        "HEAD_SIZE": head_size,
        "WIDTH": width,
        "ROWS": side,
        "KEYS": side,
        "num_warps": num_warps,
        "num_stages": 2 if is_narrow else 1,
    }
