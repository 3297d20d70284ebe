"""Dropout by counters: which element is dropped depends on nothing but its name."""

import math

import pytest
import torch

from workers.ops.counter_dropout import CounterDropout, draw_of, keep_mask

IDS = torch.arange(4000)


def mask(*, p: float = 0.5, key: int = 1, num_columns: int = 64) -> torch.Tensor:
    return keep_mask(IDS, num_columns=num_columns, p=p, key=key)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_the_dropped_share_is_p(p: float) -> None:
    kept = mask(p=p).double().mean().item()
    deviation = math.sqrt(p * (1 - p) / (4000 * 64))
    assert abs(kept - (1 - p)) <= 5 * deviation


def test_any_subset_of_rows_in_any_order_gets_its_rows_of_the_whole_mask() -> None:
    rows = torch.randperm(4000)[:777]
    assert torch.equal(keep_mask(IDS[rows], num_columns=64, p=0.5, key=1), mask()[rows])


def test_a_higher_p_drops_a_superset() -> None:
    assert not (mask(p=0.7) & ~mask(p=0.4)).any()


@pytest.mark.parametrize("shift", ["row", "column", "key"])
def test_neighbours_in_row_column_and_key_are_uncorrelated(shift: str) -> None:
    left = mask().double() - 0.5
    right = {"row": left.roll(1, 0), "column": left.roll(1, 1), "key": mask(key=2).double() - 0.5}[shift]
    correlation = (left * right).mean().item() / 0.25
    assert abs(correlation) <= 5 / math.sqrt(4000 * 64)


def test_sums_over_rows_and_columns_scatter_like_those_of_independent_bits() -> None:
    kept = mask(num_columns=256).double()
    for dim, length in ((0, 4000), (1, 256)):
        assert kept.sum(dim).var().item() == pytest.approx(length / 4, rel=0.35)


def test_sites_and_steps_drop_differently() -> None:
    x = torch.ones(100, 50)
    sites = [CounterDropout(0.5, site=site) for site in (0, 1)]
    outputs = [site(x, node_ids=IDS[:100], draw=draw_of(0, step)) for site in sites for step in (1, 2)]
    for i, left in enumerate(outputs):
        for right in outputs[:i]:
            assert 0.3 < (left != right).double().mean().item() < 0.7


def test_seeds_and_steps_give_distinct_drawings() -> None:
    assert len({draw_of(seed, step) for seed in range(100) for step in range(100)}) == 10_000


def test_the_expectation_is_kept_and_gradients_follow_the_mask() -> None:
    dropout = CounterDropout(0.25, site=0)
    x = torch.ones(4000, 64, requires_grad=True)
    out = dropout(x, node_ids=IDS, draw=7)
    assert out.mean().item() == pytest.approx(1.0, abs=0.01)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_evaluation_and_p_zero_hand_the_input_through() -> None:
    x = torch.ones(3, 2)
    assert CounterDropout(0.5, site=0).eval()(x, node_ids=IDS[:3], draw=0) is x
    assert CounterDropout(0.0, site=0)(x, node_ids=IDS[:3], draw=0) is x
