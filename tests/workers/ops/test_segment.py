"""Sums over edges equal the textbook sum, in values and gradients, with the same bits for any number of threads."""

import pytest
import torch

from tests.workers.ops.edge_lists import random_edges
from workers.ops import segment
from workers.ops.row_edges import RowEdges
from workers.ops.segment import segment_sum, sum_over_edges


def matrix(edges: RowEdges, weight: torch.Tensor) -> torch.Tensor:
    """The edges as a dense [n, m] matrix; doubles add up."""
    dense = weight.new_zeros(edges.num_rows, edges.num_sources)
    return dense.index_put((edges.targets, edges.sources), weight, accumulate=True)


@pytest.mark.parametrize(("num_rows", "num_halo", "num_edges"), [(7, 0, 30), (5, 4, 40), (3, 2, 0), (1, 0, 3)])
@pytest.mark.parametrize("tile", [1, 64, 1 << 17])
def test_sums_over_edges_equal_a_dense_product_in_values_and_gradients(
    num_rows: int, num_halo: int, num_edges: int, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(segment._TILE_ELEMENTS, "cpu", tile)
    edges = random_edges(num_rows=num_rows, num_halo=num_halo, num_edges=num_edges)
    x = torch.randn(num_rows + num_halo, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(num_edges, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(num_rows, 6, dtype=torch.float64)
    for given in (weight, None):
        ones = torch.ones(num_edges, dtype=torch.float64)
        expected = matrix(edges, ones if given is None else given) @ x
        found = sum_over_edges(x, edges=edges, weight=given)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        wanted = [x] if given is None else [x, weight]
        for ours, exact in zip(
            torch.autograd.grad(found, wanted, grad), torch.autograd.grad(expected, wanted, grad), strict=True
        ):
            torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


def test_a_segment_without_entries_sums_to_zero() -> None:
    sums = segment_sum(torch.ones(3, 2, 2), indptr=torch.tensor([0, 2, 2, 3]))
    assert sums[:, 0, 0].tolist() == [2.0, 0.0, 1.0]


def test_rows_that_lack_their_halo_are_refused() -> None:
    with pytest.raises(AssertionError, match="extend x by its halo"):
        sum_over_edges(torch.ones(3, 1), edges=random_edges(num_rows=3, num_halo=2, num_edges=4))
