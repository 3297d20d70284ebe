"""Attention of some query rows over one block of keys, with a learned distance bias, tile by tile.

    scores[h, i, j] = q[i, h] . k[j, h] / sqrt(d_h) + table[h, buckets[i, j]]

Three pieces, from which both the one-process form and the ring are built (``workers.ops.biased_attention``):
``attend_block`` gives the normalised output over this block and the log-sum-exp of its scores, ``merge`` joins the
outputs of two blocks exactly, ``attend_block_backward`` gives this block's share of all gradients, once the
log-sum-exp over *all* blocks is known. Only one tile of scores exists at any time; backward computes it anew
(Dao et al., FlashAttention, NeurIPS 2022, section 3.1).

Shapes: n query rows, m keys, H heads, d_h head size, B buckets. Of bfloat16 and float16, outputs, log-sum-exp and
gradients are in float32 (``sum_type``), so that blocks are joined without rounding in between. Plain torch;
deterministic on every device. It is the form that needs no compiler: ``workers.ops.attention_kernels`` chooses between
this one and others.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from workers.ops.attention_dropout import PairDropout
from workers.ops.near_pairs import PairBuckets, dense_rows

# Elements of one tile (all heads). 2 MiB of float32 was fastest on a CPU with 2 MiB of L2 a core, flat around it; a GPU
# wants more work in each launch (chosen, not measured).
_TILE_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 22}
# Columns of the one-hot matrix that sums by bucket: bounds its memory to so many tiles of one head.
_BUCKETS_AT_ONCE = 16


def attend_block(
    q: Tensor, *, k: Tensor, v: Tensor, buckets: PairBuckets, table: Tensor, dropout: PairDropout | None = None
) -> tuple[Tensor, Tensor]:
    """Output [n, H, d_h] and log-sum-exp [n, H] of ``q`` [n, H, d_h] over the keys ``k`` and values ``v`` [m, H, d_h].

    ``buckets`` uint8 [n, m] in either form, ``table`` [H, B]. A row without keys (m = 0) gives zeros and -inf.
    ``dropout`` drops weights after the softmax; the log-sum-exp is that of all scores. A bucket past the table is an
    error.
    """
    q, k, v, table = (x.to(sum_type(x.dtype)) for x in (q, k, v, table))
    out, lse = attended_to_nothing(q)
    if not len(q) or not len(k):
        return out, lse
    queries, keys, values = _scaled(q), k.permute(1, 2, 0).contiguous(), _by_head(v)
    for rows in _row_tiles(buckets, q.shape[1]):
        scores = _scores(queries[:, rows], keys, dense_rows(buckets, rows), table)  # [H, r, m]
        top = scores.amax(dim=2, keepdim=True)
        weights = scores.sub_(top).exp_()
        total = weights.sum(dim=2, keepdim=True)  # [H, r, 1]
        if dropout:
            weights.mul_(dropout.factors(rows, dtype=weights.dtype))
        out[rows] = torch.bmm(weights, values).div_(total).transpose(0, 1)
        lse[rows] = total.log_().add_(top).squeeze(2).t()
    return out, lse


def merge(out: Tensor, lse: Tensor, *, other_out: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Join two blocks' outputs [n, H, d_h] and log-sum-exps [n, H] into those over both blocks' keys.

    Either side may have seen no key (zeros and -inf); merging with such a side changes nothing, bit for bit.
    """
    joint = torch.logaddexp(lse, other_lse)
    finite = joint.clamp(min=torch.finfo(joint.dtype).min)  # -inf minus -inf would be NaN
    weight, other_weight = (lse - finite).exp_(), (other_lse - finite).exp_()
    return out * weight.unsqueeze(2) + other_out * other_weight.unsqueeze(2), joint


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
    """Add this block's dq to ``grad_q`` [n, H, d_h], write dk and dv [m, H, d_h], return dtable float64 [H, B].

    ``lse`` [n, H] is over all blocks, ``delta`` [n, H] the sum over d_h of ``grad_out * out`` with the merged output.
    dtable is to be summed over all blocks, dk and dv over all blocks of queries. ``dropout`` is that of
    forward.
    """
    grad_out, q, k, v, table = (x.to(sum_type(x.dtype)) for x in (grad_out, q, k, v, table))
    if not len(q) or not len(k):
        return backward_of_nothing(table, grad_k=grad_k, grad_v=grad_v)
    num_heads, head_size = q.shape[1:]
    grad_table = torch.zeros(table.shape, dtype=torch.float64, device=table.device)
    queries, keys_t, values_t = _scaled(q), k.permute(1, 2, 0).contiguous(), v.permute(1, 2, 0).contiguous()
    keys, grads = _by_head(k), _by_head(grad_out)
    lse_of, delta_of = lse.t().unsqueeze(2), delta.t().unsqueeze(2)  # [H, n, 1]
    sum_k, sum_v = torch.zeros_like(keys), torch.zeros_like(keys)  # [H, m, d_h]
    for rows in _row_tiles(buckets, num_heads):
        tile = dense_rows(buckets, rows)
        weights = _scores(queries[:, rows], keys_t, tile, table).sub_(lse_of[:, rows]).exp_()  # [H, r, m]
        grad_weights = torch.bmm(grads[:, rows], values_t)
        if dropout:
            factors = dropout.factors(rows, dtype=weights.dtype)
            sum_v.baddbmm_((weights * factors).transpose(1, 2), grads[:, rows])
            grad_weights.mul_(factors)
        else:
            sum_v.baddbmm_(weights.transpose(1, 2), grads[:, rows])
        grad_scores = grad_weights.sub_(delta_of[:, rows]).mul_(weights)
        grad_table += sum_by_bucket(grad_scores, tile, num_buckets=table.shape[1])
        grad_q[rows] += torch.bmm(grad_scores, keys).div_(math.sqrt(head_size)).transpose(0, 1)
        sum_k.baddbmm_(grad_scores.transpose(1, 2), queries[:, rows])
    grad_k.copy_(sum_k.transpose(0, 1))
    grad_v.copy_(sum_v.transpose(0, 1))
    return grad_table


def attended_to_nothing(q: Tensor) -> tuple[Tensor, Tensor]:
    """What ``attend_block`` gives where a block has no rows or no keys, in any form of it."""
    dtype = sum_type(q.dtype)
    return q.new_zeros(q.shape, dtype=dtype), q.new_full(q.shape[:2], -math.inf, dtype=dtype)


def backward_of_nothing(table: Tensor, *, grad_k: Tensor, grad_v: Tensor) -> Tensor:
    """What ``attend_block_backward`` does and gives there; ``grad_q`` has nothing added to it."""
    grad_k.zero_()
    grad_v.zero_()
    return torch.zeros(table.shape, dtype=torch.float64, device=table.device)


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """In what the sums over keys and rows of tensors of ``dtype`` are kept."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def sum_by_bucket(values: Tensor, buckets: Tensor, *, num_buckets: int) -> Tensor:
    """Sum of ``values`` [H, r, m] over the pairs of each bucket in ``buckets`` uint8 [r, m]: float64 [H, num_buckets].

    Within a row the sum is a product with a one-hot matrix (on CPU twice as fast as ``bincount``, on CUDA free of
    atomics, hence deterministic), over the rows it runs in double.
    """
    by_row = values.transpose(0, 1)  # [r, H, m]
    one_hot = torch.eye(num_buckets, dtype=values.dtype, device=values.device)
    index = buckets.flatten().int()
    sums = [
        torch.bmm(by_row, columns.index_select(0, index).view(*buckets.shape, -1)).sum(dim=0, dtype=torch.float64)
        for columns in one_hot.split(_BUCKETS_AT_ONCE, dim=1)
    ]
    return torch.cat(sums, dim=1)


def _scores(queries: Tensor, keys: Tensor, buckets: Tensor, table: Tensor) -> Tensor:
    """[H, r, m] of ``queries`` [H, r, d_h] and ``keys`` [H, d_h, m]; the bias is gathered into the result's memory."""
    bias = table.index_select(1, buckets.flatten().int()).view(-1, *buckets.shape)
    return bias.baddbmm_(queries, keys)


def _by_head(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous()  # [rows, H, d_h] -> [H, rows, d_h]


def _scaled(q: Tensor) -> Tensor:
    return _by_head(q) / math.sqrt(q.shape[2])


def _row_tiles(buckets: PairBuckets, num_heads: int) -> Iterator[slice]:
    n, m = buckets.shape
    step = max(1, _TILE_ELEMENTS[buckets.device.type] // (num_heads * m))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
