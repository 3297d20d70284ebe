"""Softmax attention with a bias for every pair and head, for small graphs, in one process or over many.

    out = softmax(q k^T / sqrt(d_h) + bias) v                   graph by graph

What ``workers.ops.biased_attention`` is to a bias of few buckets, this is to any bias: the same exchanges, the same
algebra, but scores stand in memory graph by graph (H n_g N_g numbers, as the bias itself does).

Shapes: n rows here, H heads, d_h head size; graph g has n_g rows here and N_g nodes in all.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workers.ops.attend_block import merge
from workers.ops.attention_dropout import AttentionDropout, PairDropout, mask_of
from workers.ops.biased_attention import Exchange
from workers.ops.row_layout import RowLayout


def dense_bias_attention(
    q: Tensor,
    *,
    k: Tensor,
    v: Tensor,
    bias: Sequence[Tensor],
    layout: RowLayout,
    exchange: Exchange,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """[n, H, d_h] of ``q``, ``k``, ``v`` [n, H, d_h]; ``bias[g]`` [H, n_g, N_g], differentiable in all of them.

    The rows of ``bias`` are those that attend here: own rows unless ``exchange.heads`` says otherwise. ``dropout``
    drops weights, by default none.
    """
    heads, num_heads = exchange.heads, q.shape[1]
    own = heads.own(num_heads)
    q = heads.to_heads(q.unsqueeze(1), layout=layout).squeeze(1)
    kv = heads.to_heads(torch.stack((k, v), dim=1), layout=layout)
    joined = heads.layout(layout)
    masks = partial(mask_of, dropout, layout=joined, heads=range(num_heads)[own])
    out = _DenseBiasAttention.apply(q, kv, joined, exchange, masks, *(part[own] for part in bias))
    return heads.to_rows(out.unsqueeze(1), layout=layout).squeeze(1)


class _DenseBiasAttention(torch.autograd.Function):
    """Keys and values travel as one tensor ``kv`` [rows, 2, H, d_h]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv: Tensor,
        layout: RowLayout,
        exchange: Exchange,
        masks: Callable[..., PairDropout | None],
        *bias: Tensor,
    ) -> Tensor:
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -math.inf)

        def attend(shard: int, block: Tensor) -> None:
            for graph in range(layout.num_graphs):
                rows, keys = layout.rows(layout.shard, graph), layout.rows(shard, graph)
                scores = _scores(q[rows], block[keys, 0], bias[graph][:, :, layout.columns(shard, graph)])
                if not scores.numel():
                    continue
                weights = _dropped(scores.softmax(dim=2), masks(graph=graph, shard=shard))
                part = torch.einsum("hij,jhd->ihd", weights, block[keys, 1])
                out[rows], lse[rows] = merge(
                    out[rows], lse[rows], other_out=part, other_lse=scores.logsumexp(dim=2).t()
                )

        exchange.visit(kv, layout=layout, visitor=attend)
        ctx.save_for_backward(q, kv, out, lse, *bias)
        ctx.layout, ctx.exchange, ctx.masks = layout, exchange, masks
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, out, lse, *bias = ctx.saved_tensors
        layout: RowLayout = ctx.layout
        delta = (grad_out * out).sum(dim=2)
        grad_q, grad_bias = torch.zeros_like(q), [torch.zeros_like(part) for part in bias]

        def attend_back(shard: int, block: Tensor) -> Tensor:
            grad_block = torch.zeros_like(block)
            for graph in range(layout.num_graphs):
                rows, keys = layout.rows(layout.shard, graph), layout.rows(shard, graph)
                columns = layout.columns(shard, graph)
                k, v = block[keys, 0], block[keys, 1]
                weights = (_scores(q[rows], k, bias[graph][:, :, columns]) - lse[rows].t().unsqueeze(2)).exp()
                mask = ctx.masks(graph=graph, shard=shard)
                grad_weights = _dropped(torch.einsum("ihd,jhd->hij", grad_out[rows], v), mask)
                grad_scores = (grad_weights - delta[rows].t().unsqueeze(2)) * weights
                grad_bias[graph][:, :, columns] = grad_scores
                scaled = grad_scores / math.sqrt(q.shape[2])
                grad_q[rows] += torch.einsum("hij,jhd->ihd", scaled, k)
                grad_block[keys, 0] = torch.einsum("hij,ihd->jhd", scaled, q[rows])
                grad_block[keys, 1] = torch.einsum("hij,ihd->jhd", _dropped(weights, mask), grad_out[rows])
            return grad_block

        grad_kv = ctx.exchange.visit_and_sum(kv, layout=layout, visitor=attend_back)
        return grad_q, grad_kv, None, None, None, *grad_bias


def _scores(q: Tensor, k: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[2]) + bias


def _dropped(weights: Tensor, mask: PairDropout | None) -> Tensor:
    return weights if mask is None else weights * mask.factors(slice(None), dtype=weights.dtype)
