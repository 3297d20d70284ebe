"""Attention as PyTorch has it, with scores and bias in memory: the baselines' side, in one process or by Ulysses.

Ulysses in the way of TorchGT (Zhang et al., SC 2024): a rank gives away rows and gets heads. The bias is made where
the rows of the index lie, for all heads, then changes hands like queries, keys and values. Both happen once per step
for all blocks, which spares the baseline what a bias per block would cost. One process is the same with all heads.

Shapes: n rows here of N nodes, H heads here, d_h head size, B buckets.
"""

import math
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from workers.models.attention import Attention
from workers.models.graph_batch import GraphBatch
from workers.ops.heads import Heads


def selected_bias(table: Tensor, index: Tensor, *, num_rows: int) -> Tensor:
    """[H, n, N] of ``table`` [H, B] at ``index`` int32 [n * N]. Its backward is slow: one entry after the other."""
    return table.index_select(1, index).view(len(table), num_rows, -1)


def embedded_bias(table: Tensor, index: Tensor, *, num_rows: int) -> Tensor:
    """The same, its heads side by side in memory."""
    return embedding(index, table.t()).view(num_rows, -1, len(table)).permute(2, 0, 1)


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """PyTorch's own attention [1, H, n, d_h] of ``q``, ``k``, ``v`` [1, H, n, d_h] and ``bias`` [H, n, N]."""
    return scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))


def by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The same by matrix products and softmax; backward keeps the weights and nothing else of n x N."""
    scores = torch.baddbmm(bias, q[0], k[0].transpose(1, 2), alpha=1 / math.sqrt(q.shape[3]))
    return torch.bmm(scores.softmax(dim=2), v[0]).unsqueeze(0)


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {"fused": fused, "by_hand": by_hand}


def apply_dense_attention(model: nn.Module, *, form: str, heads: Heads) -> None:
    """Give ``model``, whose batches hold one graph, attention that materialises its scores; ``heads`` says whose."""
    bias = _SharedBias(heads)
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = partial(_attend, module, attend=FORMS[form], heads=heads, bias=bias)


class _SharedBias:
    """The bias of a batch: made once, for all blocks; it lives as long as they need it."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._made: WeakKeyDictionary[GraphBatch, Tensor] = WeakKeyDictionary()

    def of(self, batch: GraphBatch, *, table: Tensor) -> Tensor:
        """[H, N, N] of the heads here, contiguous."""
        if batch not in self._made:
            (buckets,) = batch.buckets
            rows = embedded_bias(table, buckets.flatten().int(), num_rows=len(buckets)).transpose(0, 1).unsqueeze(1)
            ours = self._heads.to_heads(rows, layout=batch.layout).squeeze(1)
            self._made[batch] = ours.transpose(0, 1).contiguous()
        return self._made[batch]


def _attend(
    attention: Attention,
    h: Tensor,
    *,
    batch: GraphBatch,
    attend: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    heads: Heads,
    bias: _SharedBias,
) -> Tensor:
    """What ``Attention.forward`` computes."""
    projected = (linear(h) for linear in (attention.query, attention.key, attention.value))
    rows = torch.stack([x.unflatten(1, (attention.num_heads, -1)) for x in projected], dim=1)  # [n, 3, all heads, d_h]
    q, k, v = heads.to_heads(rows, layout=batch.layout).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    mixed = attend(q, k, v, bias.of(batch, table=attention.distance.table))
    return attention.out(heads.to_rows(mixed.transpose(1, 2).transpose(0, 1), layout=batch.layout).flatten(1))
