"""Sums over the edges of a graph in CSR, tile by tile: the pieces of edge attention and message passing.

Rows of sources are gathered for one tile of edges at a time, so no tensor of e x d elements ever exists. A row's edges
are summed in their order by one thread: results are the same bits for any number of threads, on CUDA without atomics.
Backward runs the same sums over the edges sorted by source (``RowEdges.by_source``).

Shapes: n own rows, m = n + halo rows that edges start from, e edges, H heads, d_h head size, d width of a row.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.ops.row_edges import RowEdges

# Elements that are gathered at a time. A tile should stay in the caches of a CPU core; a GPU wants more work in each
# launch (chosen, flat around it). A row's edges are never divided, so a hub may make a longer tile of its own.
_TILE_ELEMENTS = {"cpu": 1 << 17, "cuda": 1 << 22}


def sum_over_edges(x: Tensor, *, edges: RowEdges, weight: Tensor | None = None) -> Tensor:
    """``out[i] = sum of weight[e] * x[source of e]`` over the edges e into row i: [n, d] of ``x`` [m, d].

    ``weight`` [e], all ones where it is None. Rows without edges give zeros. Differentiable in ``x`` and ``weight``.
    """
    assert len(x) == edges.num_sources, f"{len(x)} rows for edges from {edges.num_sources}: extend x by its halo"
    return _SumOverEdges.apply(x, weight, edges)


def segment_softmax(scores: Tensor, *, indptr: Tensor, rows: Tensor) -> Tensor:
    """Softmax of ``scores`` [e, H] within every segment of ``indptr``; ``rows`` [e] is the segment of each entry."""
    top = _reduce(scores, "max", indptr)
    weights = (scores - top.index_select(0, rows)).exp_()
    return weights.div_(_reduce(weights, "sum", indptr).index_select(0, rows))


def segment_sum(values: Tensor, *, indptr: Tensor) -> Tensor:
    """Sums of ``values`` [e, ...] within every segment of ``indptr`` [s + 1]: [s, ...], zeros for an empty one."""
    return _reduce(values.flatten(1), "sum", indptr).view(len(indptr) - 1, *values.shape[1:])


def weighted_sum(x: Tensor, *, weights: Tensor, indptr: Tensor, columns: Tensor) -> Tensor:
    """``out[i, h] = sum of weights[e, h] * x[columns[e], h]`` over e of segment i: [rows, H, d_h].

    ``x`` [m, H, d_h], ``weights`` [e, H], ``columns`` int64 [e]. No autograd.
    """
    out = x.new_zeros(len(indptr) - 1, *x.shape[1:])
    for rows, edges in _tiles(indptr, width=x[0].numel() if len(x) else 1, device=x.device):
        messages = x.index_select(0, columns[edges]).mul_(weights[edges].unsqueeze(2))
        out[rows] = segment_sum(messages, indptr=indptr[rows.start : rows.stop + 1] - edges.start)
    return out


def dot_over_edges(x: Tensor, *, other: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """``x[rows[e], h] . other[columns[e], h]`` [e, H] for every edge e. No autograd."""
    num_heads, head_size = x.shape[1:]
    step = max(1, _TILE_ELEMENTS[x.device.type] // max(1, num_heads * head_size))
    out = x.new_empty(len(rows), num_heads)
    for start in range(0, len(rows), step):
        tile = slice(start, start + step)
        out[tile] = x.index_select(0, rows[tile]).mul_(other.index_select(0, columns[tile])).sum(dim=2)
    return out


class _SumOverEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, edges: RowEdges) -> Tensor:
        ctx.save_for_backward(x if weight is not None and weight.requires_grad else None, weight)
        ctx.edges = edges
        weights = _column(weight, edges, like=x)
        return weighted_sum(x.unsqueeze(1), weights=weights, indptr=edges.indptr, columns=edges.sources).squeeze(1)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        edges: RowEdges = ctx.edges
        grad, back = grad_out.unsqueeze(1), edges.by_source
        weights = _column(weight, edges, like=grad_out)[back.order]
        grad_x = weighted_sum(grad, weights=weights, indptr=back.indptr, columns=back.targets).squeeze(1)
        if x is None:
            return grad_x, None, None
        grad_weight = dot_over_edges(grad, other=x.unsqueeze(1), rows=edges.targets, columns=edges.sources)
        return grad_x, grad_weight.squeeze(1), None


def _column(weight: Tensor | None, edges: RowEdges, *, like: Tensor) -> Tensor:
    return like.new_ones(1, 1).expand(len(edges.sources), 1) if weight is None else weight.unsqueeze(1)


def _reduce(values: Tensor, how: str, indptr: Tensor) -> Tensor:
    return torch.segment_reduce(values.contiguous(), how, offsets=indptr, axis=0, unsafe=True)


def _tiles(indptr: Tensor, *, width: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """(rows, their entries) of at most a tile's elements, or of one row."""
    starts = indptr.numpy(force=True)
    at_most = max(1, _TILE_ELEMENTS[device.type] // width)
    row = 0
    while row < len(starts) - 1:
        end = max(row + 1, int(np.searchsorted(starts, starts[row] + at_most, side="right")) - 1)
        yield slice(row, end), slice(int(starts[row]), int(starts[end]))
        row = end
