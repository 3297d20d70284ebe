"""Attention with a dense bias: the textbook formula, graph by graph, with gradients."""

import math

import torch

from workers.ops.biased_attention import LocalExchange
from workers.ops.dense_bias_attention import dense_bias_attention
from workers.ops.row_layout import whole


def test_outputs_and_gradients_equal_the_formula_on_ragged_graphs() -> None:
    torch.manual_seed(0)
    sizes, heads, width = (5, 1, 3), 2, 4
    tensors = [torch.randn(9, heads, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    bias = [torch.randn(heads, n, n, dtype=torch.float64, requires_grad=True) for n in sizes]
    q, k, v = tensors
    ours = dense_bias_attention(q, k=k, v=v, bias=bias, layout=whole(sizes), exchange=LocalExchange())
    parts = []
    for rows, own in zip(torch.arange(9).split(sizes), bias, strict=True):
        scores = torch.einsum("ihd,jhd->hij", q[rows], k[rows]) / math.sqrt(width) + own
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), v[rows]))
    exact, weights = torch.cat(parts), torch.randn(9, heads, width, dtype=torch.float64)
    torch.testing.assert_close(ours, exact)
    found = torch.autograd.grad((ours * weights).sum(), [*tensors, *bias])
    expected = torch.autograd.grad((exact * weights).sum(), [*tensors, *bias])
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)
