"""One block of keys: outputs and gradients against the textbook form, merges that are exact, sums by bucket."""

import math

import pytest
import torch
from torch import Tensor

from workers.ops import attend_block as module
from workers.ops.attend_block import attend_block, attend_block_backward, merge, sum_by_bucket

HEADS, HEAD_SIZE, BUCKETS = 3, 5, 6


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of four rows at 11 keys, so that small cases need several tiles and a shorter last one."""
    monkeypatch.setitem(module._TILE_ELEMENTS, "cpu", 4 * HEADS * 11)


def draw(rows: int, keys: int, *, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "q": normal(rows, HEADS, HEAD_SIZE),
        "k": normal(keys, HEADS, HEAD_SIZE),
        "v": normal(keys, HEADS, HEAD_SIZE),
        "buckets": torch.randint(BUCKETS, (rows, keys), generator=generator, dtype=torch.uint8),
        "table": normal(HEADS, BUCKETS),
    }


def dense(*, q: Tensor, k: Tensor, v: Tensor, buckets: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(HEAD_SIZE) + table[:, buckets.long()]
    return torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), v), scores.logsumexp(dim=2).t()


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (4, 11), (9, 11), (13, 2), (3, 40)])
def test_output_and_log_sum_exp_equal_the_textbook_form(rows: int, keys: int) -> None:
    values = draw(rows, keys)
    for ours, exact in zip(attend_block(values.pop("q"), **values), dense(**draw(rows, keys)), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


def test_scores_far_from_zero_neither_overflow_nor_vanish() -> None:
    values = draw(6, 11)
    values["table"] = values["table"] + torch.tensor([[4000.0], [-4000.0], [0.0]])
    out, _ = attend_block(**values)
    torch.testing.assert_close(out, dense(**values)[0], rtol=1e-9, atol=1e-9)


def test_rows_without_any_key_give_zeros() -> None:
    out, lse = attend_block(**draw(4, 0))
    assert not out.any()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
def test_merging_two_blocks_equals_one_block_of_all_keys(cut: int) -> None:
    values = draw(7, 11)
    halves = [
        attend_block(
            values["q"], k=values["k"][s], v=values["v"][s], buckets=values["buckets"][:, s], table=values["table"]
        )
        for s in (slice(0, cut), slice(cut, None))
    ]
    merged = merge(*halves[0], other_out=halves[1][0], other_lse=halves[1][1])
    for ours, exact in zip(merged, dense(**values), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


def test_merging_with_a_side_that_saw_no_key_changes_no_bit() -> None:
    out, lse = attend_block(**draw(5, 11))
    nothing = torch.zeros_like(out), torch.full_like(lse, -math.inf)
    for merged in (
        merge(out, lse, other_out=nothing[0], other_lse=nothing[1]),
        merge(*nothing, other_out=out, other_lse=lse),
    ):
        assert torch.equal(merged[0], out)
        assert torch.equal(merged[1], lse)


def test_merging_two_sides_without_keys_stays_empty() -> None:
    nothing = torch.zeros(2, HEADS, HEAD_SIZE), torch.full((2, HEADS), -math.inf)
    out, lse = merge(*nothing, other_out=nothing[0], other_lse=nothing[1])
    assert not out.any()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (9, 11), (13, 2), (3, 40), (0, 5), (5, 0)])
def test_gradients_equal_those_of_autograd(rows: int, keys: int) -> None:
    values = draw(rows, keys)
    leaves = {name: values[name].requires_grad_() for name in ("q", "k", "v", "table")}
    grad_out = torch.randn(rows, HEADS, HEAD_SIZE, dtype=torch.float64)
    out, lse = dense(**values)
    expected = torch.autograd.grad(out, leaves.values(), grad_out)
    with torch.no_grad():
        delta = (grad_out * out).sum(dim=2)
        gradients = {f"grad_{name}": torch.zeros_like(values[name]) for name in ("q", "k", "v")}
        grad_table = attend_block_backward(grad_out, **values, lse=lse, delta=delta, **gradients)
    for name, ours, exact in zip(leaves, (*gradients.values(), grad_table), expected, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("num_buckets", [1, 6, 16, 40, 252])
def test_sums_by_bucket_count_every_pair_once(num_buckets: int) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(HEADS, 7, 9, generator=generator, dtype=torch.float64)
    buckets = torch.randint(num_buckets, (7, 9), generator=generator, dtype=torch.uint8)
    expected = torch.zeros(HEADS, num_buckets, dtype=torch.float64)
    expected.index_add_(1, buckets.flatten().int(), values.flatten(1))
    torch.testing.assert_close(sum_by_bucket(values, buckets, num_buckets=num_buckets), expected)


def test_the_table_gradient_in_float32_is_summed_in_double() -> None:
    values = torch.full((1, 4096, 1), 0.1)  # a float32 running sum would be off by 1e-5 here
    total = sum_by_bucket(values, torch.zeros(4096, 1, dtype=torch.uint8), num_buckets=1)
    assert float(total) == pytest.approx(4096 * float(torch.tensor(0.1)), rel=1e-12)
