"""Attention over one block of keys by the compiled kernel, with the signatures of ``workers.ops.attend_block``.

The kernel (``csrc/attention``) works in log2 on tiles that stay in cache, in the number type of its tensors, on
``torch.get_num_threads()`` threads; results are equal bit for bit for any number of them. The table's gradient is
summed in double over blocks of rows, in a fixed order. Numbers below the smallest normal one count as zero. Rows may be
strided as long as the numbers of one head lie side by side; else they are copied.
"""

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.ops.attention_dropout import PairDropout
from workers.ops.native import NativeLibrary
from workers.ops.near_pairs import NearPairs, PairBuckets


class _Rows(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class _Call(ctypes.Structure):
    """Mirrors ``csrc/attention/call.h``, field by field."""

    _fields_ = [
        ("num_rows", ctypes.c_int64),
        ("num_keys", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("head_size", ctypes.c_int64),
        ("num_buckets", ctypes.c_int64),
        ("is_double", ctypes.c_int64),
        ("instruction_set", ctypes.c_int64),
        ("num_threads", ctypes.c_int64),
        ("scale", ctypes.c_double),
        ("q", _Rows),
        ("k", _Rows),
        ("v", _Rows),
        ("buckets", ctypes.c_void_p),
        ("buckets_stride", ctypes.c_int64),
        ("near_indptr", ctypes.c_void_p),
        ("near_columns", ctypes.c_void_p),
        ("near_buckets", ctypes.c_void_p),
        ("first_column", ctypes.c_int64),
        ("far_bucket", ctypes.c_int64),
        ("table", ctypes.c_void_p),
        ("row_bits", ctypes.c_void_p),
        ("column_bits", ctypes.c_void_p),
        ("threshold", ctypes.c_int64),
        ("keep_scale", ctypes.c_double),
        ("out", _Rows),
        ("log_sum_exp", _Rows),
        ("grad_out", _Rows),
        ("delta", _Rows),
        ("grad_q", _Rows),
        ("grad_k", _Rows),
        ("grad_v", _Rows),
        ("grad_table", ctypes.c_void_p),
    ]


@dataclass(frozen=True)
class NativeAttention:
    """The kernel of ``library`` in its form for one instruction set."""

    library: NativeLibrary
    instruction_set: str

    def attend_block(
        self,
        q: Tensor,
        *,
        k: Tensor,
        v: Tensor,
        buckets: PairBuckets,
        table: Tensor,
        dropout: PairDropout | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See ``workers.ops.attend_block.attend_block``."""
        out, lse = torch.empty(q.shape, dtype=q.dtype), torch.empty(q.shape[:2], dtype=q.dtype)
        rows = {"q": q, "k": k, "v": v, "out": out, "log_sum_exp": lse}
        self._run("graphmill_attend", rows, buckets=buckets, table=table, dropout=dropout)
        return out, lse

    def attend_block_backward(
        self,
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
        assert all(_side_by_side(x) is x for x in (grad_q, grad_k, grad_v)), "written to in place"
        grad_table = torch.empty(table.shape, dtype=torch.float64)
        rows = {"q": q, "k": k, "v": v, "log_sum_exp": lse, "grad_out": grad_out, "delta": delta}
        rows |= {"grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v}
        others = {"grad_table": grad_table.data_ptr()}
        self._run("graphmill_attend_backward", rows, buckets=buckets, table=table, dropout=dropout, **others)
        return grad_table

    def _run(
        self,
        name: str,
        rows: Mapping[str, Tensor],
        *,
        buckets: PairBuckets,
        table: Tensor,
        dropout: PairDropout | None,
        **others: int,
    ) -> None:
        q, k = rows["q"], rows["k"]
        num_heads, num_buckets = table.shape
        assert {x.dtype for x in (*rows.values(), table)} == {q.dtype}
        assert {x.shape[1] for x in rows.values()} == {num_heads}
        assert buckets.shape == (len(q), len(k))
        # Whatever is copied has to outlive the call, so it gets a name.
        rows = {field: x if x.dim() == 2 else _side_by_side(x) for field, x in rows.items()}
        table = table.contiguous()
        buckets = buckets if isinstance(buckets, NearPairs) else _side_by_side(buckets)
        call = _Call(
            num_rows=len(q),
            num_keys=len(k),
            num_heads=num_heads,
            head_size=q.shape[2],
            num_buckets=num_buckets,
            is_double=q.dtype == torch.float64,
            instruction_set=self.library.instruction_sets[self.instruction_set],
            num_threads=torch.get_num_threads(),
            scale=1 / math.sqrt(q.shape[2]),
            table=table.data_ptr(),
            row_bits=dropout.row_bits.data_ptr() if dropout else None,
            column_bits=dropout.column_bits.data_ptr() if dropout else None,
            threshold=dropout.threshold if dropout else 0,
            keep_scale=dropout.keep_scale if dropout else 1,
            **_index_fields(buckets),
            **{field: _Rows(x.data_ptr(), x.stride(0), x.stride(1)) for field, x in rows.items()},
            **others,
        )
        function = getattr(self.library.functions, name)
        function.argtypes, function.restype = (ctypes.POINTER(_Call),), ctypes.c_int64
        largest_bucket = function(call)
        if largest_bucket < 0:
            raise MemoryError("the attention kernel found no memory for its tiles")
        if largest_bucket >= num_buckets:
            raise IndexError(f"bucket {largest_bucket} is past the end of a table of {num_buckets} buckets")


def _side_by_side(x: Tensor) -> Tensor:
    """``x`` with neighbours of the last dimension side by side in memory."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _index_fields(buckets: PairBuckets) -> dict[str, int]:
    if isinstance(buckets, NearPairs):
        arrays = {"near_indptr": buckets.indptr, "near_columns": buckets.columns, "near_buckets": buckets.buckets}
        assert [x.dtype for x in arrays.values()] == [torch.int64, torch.int32, torch.uint8]
        assert all(x.is_contiguous() for x in arrays.values())
        places = {name: x.data_ptr() for name, x in arrays.items()}
        return {**places, "first_column": buckets.first_column, "far_bucket": buckets.far}
    assert buckets.dtype == torch.uint8
    return {"buckets": buckets.data_ptr(), "buckets_stride": buckets.stride(0)}
