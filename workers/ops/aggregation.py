"""Sums over sampled neighbours and the small products behind them, with backwards of their own.

The rows that are summed may be those of the whole feature matrix, where they are (``Neighbours.own_rows``): nothing is
gathered, and no gradient goes there. Backward runs the same sums over the edges sorted by source; every sum has one
order, so results are the same bits for any number of threads. On CPUs the compiled kernels run (``csrc/aggregate``),
elsewhere, and without a compiler, plain torch with the same results up to rounding.

Shapes: T targets, S sources, F numbers per row, N per row of a result, H heads, C numbers per head.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workers.ops import native_aggregation as native
from workers.ops.neighbours import Neighbours, SparseRows, plain_expanded, plain_sum


def sum_neighbours(x: Tensor, *, neighbours: Neighbours, beside_own: bool = False) -> Tensor:
    """The sum that ``neighbours`` describes [T, F]; ``beside_own``: [T, 2F], the targets' own rows beside it, unscaled.

    Differentiable in ``x`` [S, F] where the targets are its first rows.
    """
    if not native.is_native(x):
        return plain_sum(x, neighbours=neighbours, beside_own=beside_own)
    return _Sum.apply(x, neighbours, beside_own)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False, rows: Tensor | None = None
) -> Tensor:
    """``x weightᵀ + bias`` [M, N], cut at 0 by ``relu``, of ``x`` [M, F] or of its ``rows`` [M], not gathered.

    ``weight`` [N, F]. Differentiable in all of them, in ``x`` unless ``rows`` are given.
    """
    if not native.is_native(x):
        out = functional.linear(x if rows is None else x[rows.long()], weight, bias)
        return out.relu() if relu else out
    bias = None if bias is None else bias.unsqueeze(0)
    return _Linear.apply(x.unsqueeze(1), weight.unsqueeze(0), bias, relu, rows).squeeze(1)


def linear_by_head(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """As ``linear``, for every head its own: ``x`` [M, H, F], ``weight`` [H, C, F], ``bias`` [H, C] → [M, H, C]."""
    assert native.is_native(x)
    return _Linear.apply(x, weight, bias, relu, None)


def sum_and_project(
    x: Tensor | SparseRows,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    neighbours: Neighbours,
    beside_own: bool = False,
    relu: bool = False,
) -> Tensor:
    """``linear(sum_neighbours(x, …), weight, bias)`` [T, N]; sparse rows are never made dense.

    ``weight`` is [N, F], or [N, 2F] with ``beside_own``.
    """
    if isinstance(x, SparseRows):
        return _project_sparse(x, weight, bias, neighbours=neighbours, beside_own=beside_own, relu=relu)
    if not beside_own or (torch.is_grad_enabled() and native.is_native(x)):
        return linear(sum_neighbours(x, neighbours=neighbours, beside_own=beside_own), weight, bias, relu=relu)
    # Two products, and no copy of the own rows: what evaluation counts on (``workers.mqgnn.evaluation``).
    of_sums, of_own = weight.split(weight.shape[1] // 2, dim=1)
    out = linear(sum_neighbours(x, neighbours=neighbours), of_sums, bias) + linear(neighbours.own(x), of_own)
    return out.relu_() if relu else out


def _project_sparse(
    x: SparseRows, weight: Tensor, bias: Tensor | None, *, neighbours: Neighbours, beside_own: bool, relu: bool
) -> Tensor:
    entries = expanded(x, neighbours=neighbours, beside_own=beside_own)
    out = sum_neighbours(weight.t().contiguous(), neighbours=entries)
    out = out if bias is None else out + bias
    return out.relu() if relu else out


def expanded(rows: SparseRows, *, neighbours: Neighbours, beside_own: bool) -> Neighbours:
    """The sums of ``neighbours`` over sparse ``rows``, as sums over rows of a matrix [F, N] to be multiplied with.

    An entry of a source's row is an edge from its column, weighted by its value and all that multiplies the source.
    ``beside_own``: the targets' own entries come from columns F … 2F − 1, as the lower half of a matrix [2F, N].
    """
    if native.is_native(rows.values):
        return native.expand(rows, neighbours=neighbours, beside_own=beside_own)
    return plain_expanded(rows, neighbours=neighbours, beside_own=beside_own)


def attend_rows(
    x: Tensor,
    *,
    neighbours: Neighbours,
    source_vectors: Tensor,
    target_vectors: Tensor,
    negative_slope: float,
    with_self: bool,
) -> Tensor:
    """Every head's weighted mean of the sources' rows: [T, H, F] of ``x`` [S, F]. Compiled kernels only.

    The weights of a target's edges, and of itself if ``with_self``, are the softmax of
    ``leaky_relu(x[source] · source_vectors[h] + x[target] · target_vectors[h])`` (Veličković et al., ICLR 2018, section
    2.1, with a's halves multiplied by W). Vectors are [H, F]. Differentiable in them, and in ``x`` where the targets
    are its first rows.
    """
    assert native.is_native(x)
    return _Attend.apply(x, source_vectors, target_vectors, neighbours, negative_slope, with_self)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, neighbours: Neighbours, beside_own: bool) -> Tensor:
        ctx.neighbours, ctx.beside_own, width = neighbours, beside_own, x.shape[1]
        out = x.new_empty(neighbours.num_targets, width * (1 + beside_own))
        native.sum_rows(
            x,
            neighbours=neighbours,
            out=out[:, :width],
            own_x=x if beside_own or neighbours.own_scale is not None else None,
            own_out=out[:, width:] if beside_own else None,
        )
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        neighbours: Neighbours = ctx.neighbours
        assert neighbours.own_rows is None, "rows of the whole graph take no gradient"
        width = grad_out.shape[1] // (1 + ctx.beside_own)
        has_own = ctx.beside_own or neighbours.own_scale is not None
        grad_x = grad_out.new_empty(neighbours.num_sources, width)
        native.sum_rows(
            grad_out[:, :width],
            neighbours=_turned(neighbours, own_scale=None if ctx.beside_own else neighbours.own_scale),
            out=grad_x,
            own_x=grad_out[:, -width:] if has_own else None,
            num_own=neighbours.num_targets,
        )
        return grad_x, None, None


def _turned(neighbours: Neighbours, *, own_scale: Tensor | None) -> Neighbours:
    """The sums that carry gradients from targets back to sources."""
    by_source = native.sorted_by_source(neighbours)
    return Neighbours(
        indptr=by_source.begins,
        sources=by_source.targets,
        num_sources=neighbours.num_targets,
        weights=None if neighbours.weights is None else neighbours.weights[by_source.edges],
        source_scale=neighbours.target_scale,
        target_scale=neighbours.source_scale,
        own_scale=own_scale,
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, rows: Tensor | None) -> Tensor:
        out = native.product(x, b=weight.transpose(1, 2), bias=bias, relu=relu, rows=rows)
        ctx.save_for_backward(x, weight, out if relu else None, rows)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, gate, rows = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            assert rows is None, "rows of a whole matrix take no gradient"
            grad_x = native.product(grad_out, b=weight, gate=gate)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            grad_weight, grad_bias = native.outer_product(grad_out, a=x, rows=rows, gate=gate)
        return grad_x, grad_weight, grad_bias if ctx.needs_input_grad[2] else None, None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        source_vectors: Tensor,
        target_vectors: Tensor,
        neighbours: Neighbours,
        negative_slope: float,
        with_self: bool,
    ) -> Tensor:
        out, weights, slopes = native.attend(
            x,
            neighbours=neighbours,
            source_vectors=source_vectors,
            target_vectors=target_vectors,
            negative_slope=negative_slope,
            with_self=with_self,
        )
        ctx.save_for_backward(x, source_vectors, target_vectors, weights, slopes)
        ctx.neighbours, ctx.with_self = neighbours, with_self
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, source_vectors, target_vectors, weights, slopes = ctx.saved_tensors
        grads = native.attend_backward(
            grad_out,
            x=x,
            neighbours=ctx.neighbours,
            source_vectors=source_vectors,
            target_vectors=target_vectors,
            weights=weights,
            slopes=slopes,
            with_self=ctx.with_self,
            to_x=ctx.needs_input_grad[0],
        )
        return *grads, None, None, None
