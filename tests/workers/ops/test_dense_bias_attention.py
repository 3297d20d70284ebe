"""Attention with a dense bias: the textbook formula, graph by graph, with gradients."""

import math

import torch

from workers.ops.attention_dropout import AttentionDropout
from workers.ops.biased_attention import LocalExchange, biased_attention
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


def test_weights_are_dropped_as_in_the_attention_with_a_distance_bias() -> None:
    torch.manual_seed(0)
    sizes, heads, width, num_buckets = (5, 1, 3), 2, 4, 3
    leaves = [torch.randn(9, heads, width, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    table = torch.randn(heads, num_buckets, dtype=torch.float64, requires_grad=True)
    buckets = [torch.randint(num_buckets, (n, n), dtype=torch.uint8) for n in sizes]
    dropout = AttentionDropout(0.4, site=2, draw=5, node_ids=torch.arange(100, 109).split(sizes))
    q, k, v = leaves
    where = {"layout": whole(sizes), "exchange": LocalExchange(), "dropout": dropout}
    ours = dense_bias_attention(q, k=k, v=v, bias=[table[:, part.long()] for part in buckets], **where)
    exact = biased_attention(q, k=k, v=v, table=table, buckets=buckets, **where)
    torch.testing.assert_close(ours, exact)
    grad = torch.randn(9, heads, width, dtype=torch.float64)
    found, expected = (torch.autograd.grad(out, [*leaves, table], grad) for out in (ours, exact))
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)
