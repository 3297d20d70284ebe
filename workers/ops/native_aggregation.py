"""Calls of the compiled sums, products and attention over sampled blocks (``csrc/aggregate``), without autograd.

All work on ``torch.get_num_threads()`` threads, and give the same bits on any number of them: work is cut by shapes
alone and summed in one order. Numbers below the smallest normal one count as zero. Rows may be strided as long as the
numbers of a row lie side by side; else they are copied.
"""

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from workers.ops.native import native_library
from workers.ops.neighbours import BySource, Neighbours, SparseRows

_INT, _POINTER = ctypes.c_int64, ctypes.c_void_p


class _Matrix(ctypes.Structure):
    _fields_ = [("data", _POINTER), ("row_stride", _INT), ("batch_stride", _INT)]


class _Call(ctypes.Structure):
    """The structures of ``csrc/aggregate/calls.h`` are mirrored below, field by field."""

    def run(self, name: str) -> None:
        """Call ``graphmill_{name}``. Raises ``MemoryError``."""
        function = _function(f"graphmill_{name}")
        if function(ctypes.byref(self)):
            raise MemoryError(f"the kernel {name} found no memory for its partial sums")


_HEAD = [("is_double", _INT), ("instruction_set", _INT), ("num_threads", _INT), ("wide", _INT)]


class _Sums(_Call):
    _fields_ = [
        *_HEAD,
        *((name, _INT) for name in ("num_targets", "num_columns", "num_own")),
        *((name, _POINTER) for name in ("indptr", "sources", "own_rows", "weights")),
        *((name, _POINTER) for name in ("source_scale", "target_scale", "own_scale")),
        *((name, _Matrix) for name in ("x", "own_x", "out", "own_out")),
    ]


class _Product(_Call):
    _fields_ = [
        *_HEAD,
        *((name, _INT) for name in ("num_batches", "num_rows", "num_inner", "num_columns", "relu")),
        ("a_rows", _POINTER),
        *((name, _Matrix) for name in ("a", "gate", "b")),
        ("b_column_stride", _INT),
        ("bias", _POINTER),
        ("c", _Matrix),
    ]


class _OuterProduct(_Call):
    _fields_ = [
        *_HEAD,
        *((name, _INT) for name in ("num_batches", "num_rows", "num_outer", "num_columns")),
        ("a_rows", _POINTER),
        *((name, _Matrix) for name in ("g", "gate", "a")),
        ("c", _POINTER),
        ("column_sums", _POINTER),
    ]


class _Heads(_Call):
    _fields_ = [
        *_HEAD,
        *((name, _INT) for name in ("num_targets", "num_heads", "num_columns", "num_sources", "with_self")),
        ("negative_slope", ctypes.c_double),
        *((name, _POINTER) for name in ("indptr", "sources", "own_rows")),
        ("x", _Matrix),
        *((name, _POINTER) for name in ("source_vectors", "target_vectors", "out", "weights", "slopes")),
        *((name, _POINTER) for name in ("grad_out", "grad_scores", "target_sums", "grad_vectors")),
        *((name, _POINTER) for name in ("by_source", "edge_targets", "edge_entries")),
        ("grad_x", _Matrix),
    ]


class _SparseRows(ctypes.Structure):
    _fields_ = [("begins", _POINTER), ("columns", _POINTER), ("values", _POINTER)]


def is_native(x: Tensor) -> bool:
    """Whether rows like ``x`` are for the compiled kernels: on the CPU, in float32 or float64, where they are built."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64) and native_library() is not None


def sum_rows(
    x: Tensor,
    *,
    neighbours: Neighbours,
    out: Tensor,
    own_x: Tensor | None = None,
    own_out: Tensor | None = None,
    num_own: int | None = None,
) -> None:
    """The sum of ``neighbours`` over the rows of ``x`` into ``out`` [targets, F].

    Own rows come from ``own_x``; they go to ``own_out`` [targets, F], or scaled into the sum where that is None. Only
    the first ``num_own`` targets have one.
    """
    with _Held() as held:
        call = held.call(_Sums, x, wide=neighbours.sources)
        call.num_targets, call.num_columns = neighbours.num_targets, x.shape[1]
        call.num_own = neighbours.num_targets if num_own is None else num_own
        call.indptr, call.sources = held.at(neighbours.indptr), held.at(neighbours.sources)
        call.own_rows = held.at(neighbours.own_rows)
        for name in ("weights", "source_scale", "target_scale", "own_scale"):
            setattr(call, name, held.at(getattr(neighbours, name), dtype=x.dtype))
        call.x, call.own_x = held.matrix(x), held.matrix(own_x)
        call.out, call.own_out = _Matrix(out.data_ptr(), out.stride(0)), held.matrix(own_out)
        call.run("sums")


def product(
    a: Tensor,
    *,
    b: Tensor,
    bias: Tensor | None = None,
    relu: bool = False,
    rows: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """``a`` [M, B, K] (or its ``rows`` [M]) times ``b`` [B, K, N], plus ``bias`` [B, N], cut at zero by ``relu``.

    Gives [M, B, N]. Numbers of ``a`` count as zero where ``gate``, of its shape, is not above zero. ``b`` may have
    any strides.
    """
    num_rows, (num_batches, num_inner, num_columns) = len(a) if rows is None else len(rows), b.shape
    out = a.new_empty(num_rows, num_batches, num_columns)
    with _Held() as held:
        call = held.call(_Product, a, wide=rows)
        call.num_batches, call.num_rows, call.num_inner, call.num_columns = (
            num_batches,
            num_rows,
            num_inner,
            num_columns,
        )
        call.relu, call.a_rows, call.bias = relu, held.at(rows), held.at(bias, dtype=a.dtype)
        call.a, call.gate, call.c = held.matrix(a), held.matrix(gate), held.matrix(out)
        call.b, call.b_column_stride = _Matrix(held.keep(b).data_ptr(), b.stride(1), b.stride(0)), b.stride(2)
        call.run("product")
    return out


def outer_product(
    g: Tensor, *, a: Tensor, rows: Tensor | None = None, gate: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(Σ over m of ``g[m, :, n] · a[m, :, k]`` [B, N, K], Σ of ``g[m]`` [B, N]) of ``g`` [M, B, N], ``a`` [M, B, K].

    With ``rows`` [M], row m of ``a`` is ``a[rows[m]]``. Numbers of ``g`` count as zero where ``gate`` is not above 0.
    """
    num_rows, num_batches, num_outer = g.shape
    out, sums = g.new_empty(num_batches, num_outer, a.shape[2]), g.new_empty(num_batches, num_outer)
    with _Held() as held:
        call = held.call(_OuterProduct, g, wide=rows)
        call.num_batches, call.num_rows, call.num_outer, call.num_columns = num_batches, num_rows, num_outer, a.shape[2]
        call.a_rows = held.at(rows)
        call.g, call.gate, call.a = held.matrix(g), held.matrix(gate), held.matrix(a)
        call.c, call.column_sums = out.data_ptr(), sums.data_ptr()
        call.run("outer_product")
    return out, sums


def attend(
    x: Tensor,
    *,
    neighbours: Neighbours,
    source_vectors: Tensor,
    target_vectors: Tensor,
    negative_slope: float,
    with_self: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """(sums [targets, H, F], weights and slopes [entries, H]); see ``workers.ops.aggregation.attend_rows``."""
    num_heads, num_columns = source_vectors.shape
    entries = len(neighbours.sources) + neighbours.num_targets * with_self
    out = x.new_empty(neighbours.num_targets, num_heads, num_columns)
    weights, slopes = x.new_empty(entries, num_heads), x.new_empty(entries, num_heads)
    with _Held() as held:
        call = _heads(held, x, neighbours, source_vectors, target_vectors, with_self)
        call.negative_slope = negative_slope
        call.out, call.weights, call.slopes = out.data_ptr(), weights.data_ptr(), slopes.data_ptr()
        call.run("heads")
    return out, weights, slopes


def attend_backward(
    grad_out: Tensor,
    *,
    x: Tensor,
    neighbours: Neighbours,
    source_vectors: Tensor,
    target_vectors: Tensor,
    weights: Tensor,
    slopes: Tensor,
    with_self: bool,
    to_x: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of ``x`` (None unless ``to_x``), ``source_vectors`` and ``target_vectors``."""
    grad_scores, grad_vectors = torch.empty_like(weights), x.new_empty(2, *source_vectors.shape)
    target_sums = x.new_empty(neighbours.num_targets, len(source_vectors))
    grad_x = x.new_empty(neighbours.num_sources, x.shape[1]) if to_x else None
    with _Held() as held:
        call = _heads(held, x, neighbours, source_vectors, target_vectors, with_self)
        call.weights, call.slopes, call.grad_out = held.at(weights), held.at(slopes), held.at(grad_out)
        call.grad_scores, call.target_sums = grad_scores.data_ptr(), target_sums.data_ptr()
        call.grad_vectors = grad_vectors.data_ptr()
        if grad_x is not None:
            by_source = sorted_by_source(neighbours)
            call.by_source, call.edge_targets = held.at(by_source.begins), held.at(by_source.targets)
            call.edge_entries, call.grad_x = held.at(by_source.edges), held.matrix(grad_x)
        call.run("heads_backward")
    return grad_x, grad_vectors[0], grad_vectors[1]


def sorted_by_source(neighbours: Neighbours) -> BySource:
    """The edges of ``neighbours`` by source."""
    sources = neighbours.sources.contiguous()
    begins = torch.empty(neighbours.num_sources + 1, dtype=torch.int32)
    targets, edges = (torch.empty(len(sources), dtype=torch.int32) for _ in range(2))
    arrays = (begins.data_ptr(), targets.data_ptr(), edges.data_ptr())
    counts = (neighbours.num_targets, neighbours.num_sources)
    indptr = neighbours.indptr.contiguous()
    _by_index("sort_by_source", sources)(indptr.data_ptr(), sources.data_ptr(), *counts, *arrays)
    return BySource(begins, targets, edges)


def expand(rows: SparseRows, *, neighbours: Neighbours, beside_own: bool) -> Neighbours:
    """See ``workers.ops.aggregation.expanded``. Raises ``OverflowError`` past 2³¹ − 1 entries."""
    sources, indptr = neighbours.sources.contiguous(), neighbours.indptr.contiguous()
    factors = neighbours.factors(torch.float32)
    own_factors = torch.ones(neighbours.num_targets) if beside_own else neighbours.own_scale
    with _Held() as held:
        call = _SparseRows(held.at(rows.begins), held.at(rows.columns), held.at(rows.values))
        own = (held.at(neighbours.own_rows), held.at(own_factors, dtype=torch.float32))
        what = (ctypes.addressof(call), indptr.data_ptr(), sources.data_ptr(), factors.data_ptr(), *own)
        counts = (rows.num_features * beside_own, neighbours.num_targets)
        function = _by_index("expand", sources)
        total = function(*what, *counts, None, None, None)
        if total < 0:
            raise OverflowError("the rows of a block have more than 2³¹ − 1 entries: lower batch size or fanouts")
        begins = torch.empty(neighbours.num_targets + 1, dtype=torch.int32)
        columns, values = torch.empty(total, dtype=torch.int32), torch.empty(total)
        function(*what, *counts, begins.data_ptr(), columns.data_ptr(), values.data_ptr())
    return Neighbours(indptr=begins, sources=columns, num_sources=rows.num_features * (1 + beside_own), weights=values)


def _heads(
    held: "_Held",
    x: Tensor,
    neighbours: Neighbours,
    source_vectors: Tensor,
    target_vectors: Tensor,
    with_self: bool,
) -> _Heads:
    call = held.call(_Heads, x, wide=neighbours.sources)
    call.num_targets, call.num_sources = neighbours.num_targets, neighbours.num_sources
    call.num_heads, call.num_columns = source_vectors.shape
    call.with_self, call.x = with_self, held.matrix(x)
    call.indptr, call.sources = held.at(neighbours.indptr), held.at(neighbours.sources)
    call.own_rows = held.at(neighbours.own_rows)
    call.source_vectors, call.target_vectors = held.at(source_vectors), held.at(target_vectors)
    return call


class _Held:
    """Tensors whose addresses a call has been given: alive until it is over, copied where they do not lie right."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def __enter__(self) -> "_Held":
        return self

    def __exit__(self, *_: object) -> None:
        self._tensors.clear()

    def call(self, kind: type[Any], like: Tensor, *, wide: Tensor | None) -> Any:
        """A fresh call for numbers like those of ``like`` and row numbers like those of ``wide``."""
        return kind(
            is_double=like.dtype == torch.float64,
            instruction_set=_best(),
            num_threads=torch.get_num_threads(),
            wide=wide is not None and wide.dtype == torch.int64,
        )

    def keep(self, tensor: Tensor) -> Tensor:
        """``tensor``, alive."""
        self._tensors.append(tensor)
        return tensor

    def at(self, tensor: Tensor | None, *, dtype: torch.dtype | None = None) -> int | None:
        """The address of its numbers, side by side, in ``dtype``."""
        return None if tensor is None else self.keep(tensor.to(dtype or tensor.dtype).contiguous()).data_ptr()

    def matrix(self, tensor: Tensor | None) -> _Matrix:
        """Rows [M, F], or [M, B, F] of B matrices."""
        if tensor is None:
            return _Matrix()
        if tensor.stride(-1) != 1:
            tensor = tensor.contiguous()
        return _Matrix(self.keep(tensor).data_ptr(), tensor.stride(0), tensor.stride(1) if tensor.dim() == 3 else 0)


@cache
def _best() -> int:
    library = native_library()
    assert library, "no native library is installed"
    return library.instruction_sets[library.best_instruction_set]


@cache
def _function(name: str) -> Any:
    library = native_library()
    assert library, "no native library is installed"
    function = getattr(library.functions, name)
    function.restype = _INT
    return function


_ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "sort_by_source": (_POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER, _POINTER),
    "expand": (*(_POINTER,) * 6, _INT, _INT, *(_POINTER,) * 3),
}


def _by_index(name: str, numbers: Tensor) -> Any:
    function = _function(f"graphmill_{name}_{64 if numbers.dtype == torch.int64 else 32}")
    function.argtypes = _ARGUMENTS[name]
    return function
