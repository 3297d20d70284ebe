"""Attention over one block of keys by torch's FlexAttention, with the signatures of ``workers.ops.attend_block``.

Only on request: it drops no weights, sums the table's gradient by atomics (runs differ in their last bits), has no
backward on CPU, and is compiled anew for new sizes. Source: Dong et al., "Flex Attention: A Programming Model for
Generating Optimized Attention Kernels", 2024.

Its backward knows only its own block. What the other blocks do to the output reaches this one through two numbers: with
w = exp(lse_block - lse), the merged output is the sum of w * out_block, so

    d out_block = w * grad_out            d lse_block = w * (grad_out . out_block - delta)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention
from torch.nn.functional import pad

from workers.errors import KernelUnavailableError
from workers.ops.attend_block import attended_to_nothing, backward_of_nothing, sum_type
from workers.ops.attention_dropout import PairDropout
from workers.ops.near_pairs import PairBuckets, dense_rows

_SMALLEST_HEAD = 16  # of what its kernels take; smaller heads are filled up with zeros

# (q, k, v [1, H, rows, d_h], score_mod, scale) -> output and log-sum-exp [1, H, n], differentiable in both
Attend = Callable[[Tensor, Tensor, Tensor, Callable[..., Tensor], float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class FlexAttention:
    """The two functions on top of ``attend``."""

    attend: Attend

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
        """See ``workers.ops.attend_block.attend_block``. Raises ``KernelUnavailableError`` for dropout."""
        if dropout is not None:
            raise KernelUnavailableError(
                "attention_kernel flex was asked for with dropout of attention weights, which it has not; set the"
                " dropout to 0, or ask for auto"
            )
        if not len(q) or not len(k):
            return attended_to_nothing(q)
        dtype = sum_type(q.dtype)
        out, lse = self._attend(q, k, v, buckets=buckets, table=table)
        return out.to(dtype), lse.to(dtype)

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
        assert dropout is None, "forward has refused it"
        if not len(q) or not len(k):
            return backward_of_nothing(table, grad_k=grad_k, grad_v=grad_v)
        leaves = [x.detach().requires_grad_() for x in (q, k, v, table)]
        with torch.enable_grad():
            out, own_lse = self._attend(*leaves[:3], buckets=buckets, table=leaves[3])
        weight = (own_lse.detach().to(lse.dtype) - lse).exp()  # [n, H]
        own_delta = (grad_out * out.detach()).sum(dim=2, dtype=lse.dtype)
        gradients = ((weight.unsqueeze(2) * grad_out).to(out.dtype), (weight * (own_delta - delta)).to(own_lse.dtype))
        dq, dk, dv, dtable = torch.autograd.grad((out, own_lse), leaves, gradients)
        grad_q.add_(dq)
        grad_k.copy_(dk)
        grad_v.copy_(dv)
        return dtable.double()

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, *, buckets: PairBuckets, table: Tensor) -> tuple[Tensor, Tensor]:
        """Output [n, H, d_h] and log-sum-exp [n, H]."""
        tiles = dense_rows(buckets, slice(None))  # of near pairs, a byte for every pair of this block

        def add_bias(score: Tensor, _: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return score + table[head, tiles[row, column].int()]

        head_size = q.shape[2]
        missing = max(0, _SMALLEST_HEAD - head_size)
        by_head = [pad(x, (0, missing)).transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        out, lse = self.attend(*by_head, add_bias, 1 / math.sqrt(head_size))
        return out[0, :, :, :head_size].transpose(0, 1), lse[0].t()


def compiled_flex_attention() -> FlexAttention:
    """Torch's own, compiled for the device at its first call."""
    compiled = torch.compile(flex_attention)

    def attend(
        q: Tensor, k: Tensor, v: Tensor, score_mod: Callable[..., Tensor], scale: float
    ) -> tuple[Tensor, Tensor]:
        out, aux = compiled(q, k, v, score_mod=score_mod, scale=scale, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    return FlexAttention(attend)
