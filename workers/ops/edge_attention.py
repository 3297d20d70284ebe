"""Multi-head attention along the edges of a graph: each row attends to the rows that its edges start from.

    out[i, h] = sum over edges e into i of softmax_e(q[i, h] . k[s_e, h] / sqrt(d_h) + bias[e, h]) v[s_e, h]

Source: Dwivedi and Bresson, "A Generalization of Transformer Networks to Graphs", 2020, section 2.2. Kept for backward
are the inputs and the probabilities [e, H]; keys and values are gathered tile by tile (``workers.ops.segment``), never
as e rows. Deterministic for any number of threads.

Shapes: n own rows, m = n + halo rows, e edges, H heads, d_h head size.
"""

import math
from typing import Any

import torch
from torch import Tensor

from workers.ops.row_edges import RowEdges
from workers.ops.segment import dot_over_edges, segment_softmax, segment_sum, weighted_sum


def edge_attention(q: Tensor, *, k: Tensor, v: Tensor, edges: RowEdges, bias: Tensor | None = None) -> Tensor:
    """[n, H, d_h] of queries ``q`` [n, H, d_h], keys and values ``k``, ``v`` [m, H, d_h], and ``bias`` [e, H].

    A row without edges gives zeros. Differentiable in all four tensors.
    """
    assert len(q) == edges.num_rows, f"{len(q)} queries for edges into {edges.num_rows} rows"
    assert len(k) == len(v) == edges.num_sources, f"{len(k)} keys, {len(v)} values for {edges.num_sources} sources"
    return _EdgeAttention.apply(q, k, v, bias, edges)


class _EdgeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, edges: RowEdges) -> Tensor:
        scores = dot_over_edges(q, other=k, rows=edges.targets, columns=edges.sources).div_(math.sqrt(q.shape[2]))
        if bias is not None:
            scores += bias
        probabilities = segment_softmax(scores, indptr=edges.indptr, rows=edges.targets)
        ctx.save_for_backward(q, k, v, probabilities)
        ctx.edges = edges
        return weighted_sum(v, weights=probabilities, indptr=edges.indptr, columns=edges.sources)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, probabilities = ctx.saved_tensors
        edges: RowEdges = ctx.edges
        back = edges.by_source
        grad_scores = dot_over_edges(grad_out, other=v, rows=edges.targets, columns=edges.sources)
        grad_scores *= probabilities
        grad_scores -= probabilities * segment_sum(grad_scores, indptr=edges.indptr).index_select(0, edges.targets)
        scaled = grad_scores / math.sqrt(q.shape[2])
        return (
            weighted_sum(k, weights=scaled, indptr=edges.indptr, columns=edges.sources),
            weighted_sum(q, weights=scaled[back.order], indptr=back.indptr, columns=back.targets),
            weighted_sum(grad_out, weights=probabilities[back.order], indptr=back.indptr, columns=back.targets),
            grad_scores if ctx.needs_input_grad[3] else None,
            None,
        )
