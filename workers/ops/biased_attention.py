"""Softmax attention with a learned distance bias over a ragged micro-batch, exact, in one process or over many.

The loop over blocks of keys stands here once. Where a block comes from is the business of an ``Exchange``: in one
process there is a single block (``LocalExchange``), in a ring (``workers.comm.ring``) the shards of all ranks come by
in turn. Saved for backward are the inputs, the output and the log-sum-exp; no score survives its tile.

Shapes: n rows here, H heads, d_h head size, B buckets; graph g has n_g rows here and N_g nodes in all.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from workers.ops.attend_block import merge, sum_type
from workers.ops.attention_dropout import AttentionDropout, PairDropout, mask_of
from workers.ops.attention_kernels import AttentionKernel, kernel_for
from workers.ops.heads import AllHeads, Heads
from workers.ops.near_pairs import PairBuckets, among_columns
from workers.ops.row_layout import RowLayout


class Exchange(Protocol):
    """Brings the keys and values of all shards to this process, one block after the other."""

    @property
    def heads(self) -> Heads:
        """Whose rows and which heads the blocks are of; ``layout`` below is ``heads.layout`` of the own rows'."""

    def visit(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], None]) -> None:
        """Call ``visitor(shard, that shard's block)`` for every shard; ``block`` is the one that lies here."""

    def visit_and_sum(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], Tensor]) -> Tensor:
        """As ``visit``, and every process's ``visitor`` returns something of the block's shape.

        The result is the sum, over all processes, of what they returned for the block that lies here.
        """


class LocalExchange:
    """One process: the only block is its own."""

    heads: Heads = AllHeads()

    def visit(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], None]) -> None:
        """See ``Exchange``."""
        visitor(layout.shard, block)

    def visit_and_sum(self, block: Tensor, *, layout: RowLayout, visitor: Callable[[int, Tensor], Tensor]) -> Tensor:
        """See ``Exchange``."""
        return visitor(layout.shard, block)


def biased_attention(
    q: Tensor,
    *,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    buckets: Sequence[PairBuckets],
    layout: RowLayout,
    exchange: Exchange,
    dropout: AttentionDropout | None = None,
    kernel: AttentionKernel | None = None,
) -> Tensor:
    """``softmax(q k^T / sqrt(d_h) + table[buckets]) v`` [n, H, d_h], each graph attending to itself only.

    ``q``, ``k``, ``v`` [n, H, d_h] hold the rows of all graphs as ``layout`` says; ``table`` [H, B]; ``buckets[g]``
    uint8 [n_g, N_g], in either form (``workers.ops.near_pairs``), holds the distance bucket of every pair (row, node of
    the graph); its rows are own rows unless ``exchange.heads`` says otherwise. Gradients flow into ``q``, ``k``, ``v``
    and ``table``; that of ``table`` is this process's share, to be summed over the processes. ``dropout`` drops
    weights, by default none; ``kernel`` is by default the fastest one for such tensors.
    """
    heads, own = exchange.heads, exchange.heads.own(q.shape[1])
    joined = heads.layout(layout)
    masks = partial(mask_of, dropout, layout=joined, heads=range(q.shape[1])[own])
    q = heads.to_heads(q.unsqueeze(1), layout=layout).squeeze(1)
    kv = heads.to_heads(torch.stack((k, v), dim=1), layout=layout)
    out = _BiasedAttention.apply(q, kv, table[own], tuple(buckets), joined, exchange, masks, kernel or kernel_for(q))
    return heads.to_rows(out.unsqueeze(1), layout=layout).squeeze(1)


class _BiasedAttention(torch.autograd.Function):
    """Keys and values travel as one tensor ``kv`` [rows, 2, H, d_h]: one message per shard."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        kv: Tensor,
        table: Tensor,
        buckets: tuple[PairBuckets, ...],
        layout: RowLayout,
        exchange: Exchange,
        masks: Callable[..., PairDropout | None],
        kernel: AttentionKernel,
    ) -> Tensor:
        dtype = sum_type(q.dtype)
        out, lse = torch.zeros_like(q, dtype=dtype), q.new_full(q.shape[:2], float("-inf"), dtype=dtype)

        def attend(shard: int, block: Tensor) -> None:
            for graph in range(layout.num_graphs):
                rows, keys = layout.rows(layout.shard, graph), layout.rows(shard, graph)
                part, part_lse = kernel.attend_block(
                    q[rows],
                    k=block[keys, 0],
                    v=block[keys, 1],
                    buckets=among_columns(buckets[graph], layout.columns(shard, graph)),
                    table=table,
                    dropout=masks(graph=graph, shard=shard),
                )
                out[rows], lse[rows] = merge(out[rows], lse[rows], other_out=part, other_lse=part_lse)

        exchange.visit(kv, layout=layout, visitor=attend)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, kv, table, out, lse)
        ctx.buckets, ctx.layout, ctx.exchange, ctx.masks, ctx.kernel = buckets, layout, exchange, masks, kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, table, out, lse = ctx.saved_tensors
        layout: RowLayout = ctx.layout
        dtype = sum_type(q.dtype)
        delta = (grad_out.to(dtype) * out).sum(dim=2)
        grad_q = torch.zeros_like(q, dtype=dtype)
        grad_table = torch.zeros(table.shape, dtype=torch.float64, device=table.device)

        def attend_back(shard: int, block: Tensor) -> Tensor:
            grad_block = torch.empty_like(block, dtype=dtype)
            for graph in range(layout.num_graphs):
                rows, keys = layout.rows(layout.shard, graph), layout.rows(shard, graph)
                dtable = ctx.kernel.attend_block_backward(
                    grad_out[rows],
                    q=q[rows],
                    k=block[keys, 0],
                    v=block[keys, 1],
                    buckets=among_columns(ctx.buckets[graph], layout.columns(shard, graph)),
                    table=table,
                    lse=lse[rows],
                    delta=delta[rows],
                    grad_q=grad_q[rows],
                    grad_k=grad_block[keys, 0],
                    grad_v=grad_block[keys, 1],
                    dropout=ctx.masks(graph=graph, shard=shard),
                )
                grad_table.add_(dtable)
            return grad_block

        grad_kv = ctx.exchange.visit_and_sum(kv, layout=layout, visitor=attend_back)
        return grad_q.to(q.dtype), grad_kv.to(kv.dtype), grad_table.to(table.dtype), None, None, None, None, None
