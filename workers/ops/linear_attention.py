"""Attention of every row to all rows of a graph at linear cost: only sums over rows meet, whatever their number is.

    out = (N v + q (k^T v)) / (N + q . sum k)        q, k divided by their Frobenius norms over all rows and heads

Source: Wu et al., "SGFormer: Simplifying and Empowering Transformers for Large-Graph Representations", NeurIPS 2023,
section 3.1; norms over all heads together, as in the authors' code. The norms are two numbers that can be divided by
last, so one sum of H d_h^2 + d + 2 elements is all that shards tell each other.

Shapes: n own rows of N, H heads, d_h head size, d = H d_h.
"""

import torch
from torch import Tensor

from workers.ops.exchanges import SumExchange


def linear_attention(q: Tensor, *, k: Tensor, v: Tensor, sums: SumExchange, num_rows: int) -> Tensor:
    """[n, H, d_h] of ``q``, ``k``, ``v`` [n, H, d_h]; ``num_rows`` is N, ``sums`` sums over all shards of the graph."""
    num_heads, head_size = q.shape[1:]
    parts = (torch.einsum("nhi,nhj->hij", k, v), k.sum(dim=0), q.square().sum(), k.square().sum())
    whole = sums.sum(torch.cat([part.flatten() for part in parts]))
    keys_values, keys, q_square, k_square = whole.split([part.numel() for part in parts])
    scale = (q_square * k_square).rsqrt()
    mixed = torch.einsum("nhi,hij->nhj", q, keys_values.view(num_heads, head_size, head_size))
    attended = torch.einsum("nhi,hi->nh", q, keys.view(num_heads, head_size)).unsqueeze(2)
    return (num_rows * v + scale * mixed) / (num_rows + scale * attended)
