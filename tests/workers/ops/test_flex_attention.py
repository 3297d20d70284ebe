"""What we build on FlexAttention: its blocks join exactly. Its own kernels run on CUDA alone: a dense form stands in.

The stand-in keeps torch's contract: ``score_mod`` sees a score with its head, row and column; output and log-sum-exp
are differentiable.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.workers.ops.attention_cases import Case, assert_near, compute, dense
from workers.errors import KernelUnavailableError
from workers.ops.attend_block import merge
from workers.ops.attention_kernels import AttentionKernel
from workers.ops.flex_attention import FlexAttention


def dense_attend(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Callable[..., Tensor], scale: float
) -> tuple[Tensor, Tensor]:
    batch, head, row, column = torch.meshgrid(
        *(torch.arange(size) for size in (1, *q.shape[1:3], k.shape[2])), indexing="ij"
    )
    scores = score_mod(torch.matmul(q, k.transpose(2, 3)) * scale, batch, head, row, column)
    return torch.matmul(scores.softmax(dim=3), v), scores.logsumexp(dim=3)


FLEX = FlexAttention(dense_attend)
KERNEL = AttentionKernel(FLEX.attend_block, FLEX.attend_block_backward)


@pytest.mark.parametrize("head_size", [5, 20])
def test_one_block_equals_the_textbook_form(head_size: int) -> None:
    case = Case(head_size=head_size)
    assert_near(compute(KERNEL, case, torch.float64), dense(case), tolerance=1e-12)


@pytest.mark.parametrize("cut", [0, 1, 100, 130])
def test_blocks_joined_equal_the_textbook_form_in_all_gradients(cut: int) -> None:
    case = Case()
    values, grad_out, exact = case.values(), case.grad_out(), dense(case)
    ranges = [slice(0, cut), slice(cut, case.keys)]
    blocks = [
        {name: values[name][keys] for name in "kv"} | {"buckets": values["buckets"][:, keys], "table": values["table"]}
        for keys in ranges
    ]
    (out, lse), (other_out, other_lse) = (KERNEL.attend_block(values["q"], **block) for block in blocks)
    out, lse = merge(out, lse, other_out=other_out, other_lse=other_lse)
    grad_q, grad_kv = torch.zeros_like(values["q"]), [torch.empty_like(values[name]) for name in "kv"]
    tables = [
        KERNEL.attend_block_backward(
            grad_out,
            q=values["q"],
            **block,
            lse=lse,
            delta=(grad_out * out).sum(dim=2),
            grad_q=grad_q,
            grad_k=grad_kv[0][keys],
            grad_v=grad_kv[1][keys],
        )
        for keys, block in zip(ranges, blocks, strict=True)
    ]
    assert_near((out, lse, grad_q, *grad_kv, sum(tables)), exact, tolerance=1e-12)


def test_dropout_is_refused_with_a_way_out() -> None:
    case = Case(p=0.1)
    with pytest.raises(KernelUnavailableError, match=r"flex was asked for with dropout .* ask for auto"):
        KERNEL.attend_block(**case.values(), dropout=case.dropout())
