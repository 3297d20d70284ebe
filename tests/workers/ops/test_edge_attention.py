"""Attention along edges equals masked dense attention, in values and gradients, tile by tile."""

import math

import pytest
import torch
from torch import Tensor

from tests.workers.ops.edge_lists import random_edges
from workers.ops import segment
from workers.ops.edge_attention import edge_attention
from workers.ops.row_edges import RowEdges


def by_the_book(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, edges: RowEdges) -> Tensor:
    """Row by row, head by head."""
    scores = (q[edges.targets] * k[edges.sources]).sum(2) / math.sqrt(q.shape[2])
    scores = scores if bias is None else scores + bias
    rows = []
    for row in range(edges.num_rows):
        mine = slice(int(edges.indptr[row]), int(edges.indptr[row + 1]))
        rows.append(torch.einsum("eh,ehd->hd", scores[mine].softmax(dim=0), v[edges.sources[mine]]))
    return torch.stack(rows)


def inputs(edges: RowEdges, dtype: torch.dtype, *, with_bias: bool) -> list[Tensor]:
    torch.manual_seed(1)
    own, all_rows = edges.num_rows, edges.num_sources
    shapes = [(own, 2, 4), (all_rows, 2, 4), (all_rows, 2, 4)] + [(len(edges.sources), 2)] * with_bias
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def attend(tensors: list[Tensor], edges: RowEdges) -> Tensor:
    q, k, v, *bias = tensors
    return edge_attention(q, k=k, v=v, edges=edges, bias=bias[0] if bias else None)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("num_rows", "num_halo", "num_edges"), [(7, 0, 30), (5, 4, 40), (4, 3, 2), (3, 0, 0)])
@pytest.mark.parametrize("tile", [1, 1 << 17])
def test_attention_equals_the_textbook_in_values_and_gradients(
    num_rows: int, num_halo: int, num_edges: int, with_bias: bool, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(segment._TILE_ELEMENTS, "cpu", tile)
    edges = random_edges(num_rows=num_rows, num_halo=num_halo, num_edges=num_edges)
    tensors = inputs(edges, torch.float64, with_bias=with_bias)
    found = attend(tensors, edges)
    expected = by_the_book(*tensors[:3], tensors[3] if with_bias else None, edges)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not found[-1].any(), "the last row has no edges"
    grad = torch.randn_like(found)
    ours, exact = (torch.autograd.grad(out, tensors, grad) for out in (found, expected))
    for mine, book in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, book, rtol=1e-11, atol=1e-12)


def test_large_scores_do_not_overflow() -> None:
    edges = random_edges(num_rows=4, num_halo=0, num_edges=20)
    tensors = [tensor.detach() * 1e3 for tensor in inputs(edges, torch.float32, with_bias=True)]
    assert attend(tensors, edges).isfinite().all()


def test_results_have_the_same_bits_for_any_number_of_threads() -> None:
    edges = random_edges(num_rows=300, num_halo=50, num_edges=20_000)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            tensors = inputs(edges, torch.float32, with_bias=True)
            out = attend(tensors, edges)
            results.append((out, *torch.autograd.grad(out.square().sum(), tensors)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(left, right) for left, right in zip(results[0], other, strict=True))
