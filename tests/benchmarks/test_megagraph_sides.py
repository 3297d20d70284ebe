"""The sides of the ``megagraph_*`` benchmarks, in small."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.benchmarks.megagraph_limit import LIMIT_BYTES, TOLERANCE, compare_limits, extrapolated, largest
from tests.benchmarks.megagraph_memory import compare_memory
from tests.benchmarks.megagraph_sides import Side, Size, dense_sides, measure_side
from tests.benchmarks.megagraph_speed import compare_speed
from tests.kit.gloo_pool import GlooPool

TINY = Size(num_nodes=30, num_layers=2, hidden_size=16, num_heads=4)
SIDES = [
    Side(2),
    Side(2, exchange="ulysses"),
    *dense_sides(1).values(),
    *dense_sides(2).values(),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


@pytest.mark.parametrize("side", SIDES, ids=str)
def test_all_sides_train_alike(pool: GlooPool, side: Side) -> None:
    ours = measure_side(pool, Side(1), TINY, num_steps=4)
    found = measure_side(pool, side, TINY, num_steps=4)
    assert found.losses == pytest.approx(ours.losses, rel=1e-4)
    assert len(set(ours.losses)) == 4
    assert len(found.seconds) == 3


def test_memory_holds_ours_against_the_leaner_form_of_each_baseline(pool: GlooPool) -> None:
    outcome = compare_memory(
        replace(TINY, num_nodes=600), peak_of=lambda side, size: measure_side(pool, side, size, num_steps=2).peak_bytes
    )
    peaks = outcome.details["peak_bytes"]
    dense = min(peaks["dense fused"], peaks["dense by_hand"])
    assert dense > 600 * 600 * TINY.num_heads * 4 * (TINY.num_layers + 1), "less than the scores and the bias"
    assert outcome.figures["reduction_p4"] == 1 - peaks["ours, 4"] / dense
    assert outcome.verdicts.keys() == outcome.figures.keys() == {"reduction_p1", "reduction_p4", "vs_ulysses_p4"}


def test_speed_holds_the_best_way_of_ours_against_the_best_way_of_dense(pool: GlooPool) -> None:
    outcome = compare_speed(pool, TINY, rounds=1)
    assert outcome.figures["speedup"] > 0
    assert outcome.details["best"]["ours"] in {"ring", "ulysses"}
    assert set(outcome.details["tried_s"]) > set(outcome.details["best"].values()), "the best are among more"


@pytest.mark.parametrize("per_row", [0, 50_000])
@pytest.mark.parametrize("start", [300, 2_000, 9_000])
def test_the_limit_is_found_to_the_tolerance_from_below_and_from_above(start: int, per_row: int) -> None:
    def peak(num_nodes: int) -> int:
        return 100 * num_nodes**2 + per_row * num_nodes

    found = largest(peak, start=start, limit_bytes=LIMIT_BYTES)
    assert peak(found.num_nodes) <= LIMIT_BYTES < peak(round(found.num_nodes * (1 + TOLERANCE)) + 1)
    assert len(found.probes) <= 8


def test_limits_are_compared_by_numbers_of_nodes() -> None:
    def peak(side: Side, size: Size) -> int:
        pairs = size.num_nodes**2 / side.num_ranks
        return round(pairs if side.dense is None else 256 * pairs)

    outcome = compare_limits(peak)
    assert outcome.figures["n_ratio"] == pytest.approx(32, rel=TOLERANCE)
    assert outcome.figures["n_ratio_ulysses"] == pytest.approx(16, rel=TOLERANCE)


def test_the_size_that_would_fit_lies_on_the_line_of_those_measured() -> None:
    assert extrapolated({100: 1_000, 300: 1_400}, limit_bytes=2_000) == 600


def test_near_pairs_train_on_one_rank_and_on_four_alike(pool: GlooPool) -> None:
    size = replace(TINY, num_nodes=300, index="near_pairs", max_distance=2)
    alone, four = (measure_side(pool, Side(num_ranks), size, num_steps=3) for num_ranks in (1, 4))
    assert four.losses == pytest.approx(alone.losses, rel=1e-4)
