"""The sides of the ``pipeline`` benchmark, in small."""

import pytest

from tests.benchmarks.pipeline import compare_splits, play_steps
from tests.kit.gloo_pool import GlooPool


def test_both_splits_are_played_and_compared() -> None:
    with GlooPool(2) as pool:
        by_rank = pool.run(play_steps, 1, timeout_s=120.0)
    for played in by_rank:
        assert {name: len(steps) for name, steps in played.items()} == {"even": 1, "ours": 1}
    outcome = compare_splits(by_rank)
    assert outcome.figures["speedup_vs_even"] > 0
    assert outcome.details["simulated"]["2 ranks"]["1f1b"] == pytest.approx(1.41, abs=0.01)
