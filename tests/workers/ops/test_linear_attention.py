"""Linear attention equals its quadratic form, in one piece and cut into shards whose sums are added."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from workers.ops.exchanges import LocalSums
from workers.ops.linear_attention import linear_attention


def quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Wu et al. 2023, equation (3), with the N x N matrix written out: (1 + q k^T / N) row-normalised, times v."""
    num_rows = len(q)
    scores = torch.einsum("ihd,jhd->hij", q / q.norm(), k / k.norm()) / num_rows
    weights = torch.eye(num_rows, dtype=q.dtype) + scores
    normaliser = 1 + scores.sum(dim=2, keepdim=True)
    return torch.einsum("hij,jhd->ihd", weights / normaliser, v)


@dataclass
class CountedSums:
    """Adds what another shard has said before."""

    other: Tensor | None = None
    said: list[Tensor] = field(default_factory=list)

    def sum(self, x: Tensor) -> Tensor:
        self.said.append(x)
        return x if self.other is None else x + self.other


def heads() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(9, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]


def test_linear_attention_equals_the_quadratic_form_in_values_and_gradients() -> None:
    q, k, v = heads()
    found = linear_attention(q, k=k, v=v, sums=LocalSums(), num_rows=9)
    expected = quadratic(q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    grad = torch.randn_like(found)
    ours, exact = (torch.autograd.grad(out, (q, k, v), grad) for out in (found, expected))
    for mine, book in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, book, rtol=1e-11, atol=1e-12)


def test_shards_tell_each_other_one_sum_whose_size_does_not_depend_on_the_rows() -> None:
    q, k, v = (tensor.detach() for tensor in heads())
    first, second, nothing = slice(0, 6), slice(6, 9), slice(9, 9)
    there = CountedSums()
    linear_attention(q[second], k=k[second], v=v[second], sums=there, num_rows=9)
    here = CountedSums(other=there.said[0])
    found = linear_attention(q[first], k=k[first], v=v[first], sums=here, num_rows=9)
    torch.testing.assert_close(found, quadratic(q, k, v)[first], rtol=1e-12, atol=1e-12)
    assert [part.numel() for part in here.said] == [2 * 3 * 3 + 2 * 3 + 2]
    assert linear_attention(q[nothing], k=k[nothing], v=v[nothing], sums=here, num_rows=9).shape == (0, 2, 3)
