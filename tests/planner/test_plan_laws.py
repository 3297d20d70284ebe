"""The laws of a plan's stages and partition."""

import pytest
from pydantic import ValidationError

from planner.errors import PlanInvalidError
from planner.plan import MegaGraphPlan, Partition, Stage, check_heads
from planner.schedule import actions_by_rank, one_f_one_b_actions


def stage(*, cp: int, exchange: str, ulysses: int = 1) -> Stage:
    return Stage(
        units=("block.0",),
        ranks=tuple(range(cp)),
        dp_degree=1,
        cp_degree=cp,
        exchange=exchange,
        ulysses_degree=ulysses,
    )


def plan(**fields: object) -> MegaGraphPlan:
    only = stage(**fields)
    return MegaGraphPlan(
        world_size=len(only.ranks),
        stages=(only,),
        actions=actions_by_rank((only,), one_f_one_b_actions(num_stages=1, num_micro_batches=1)),
    )


@pytest.mark.parametrize(
    ("cp", "exchange", "ulysses"),
    [
        (4, "ring", 1),
        (4, "ulysses", 4),
        (4, "ulysses_ring", 2),
        (6, "ulysses_ring", 3),
        (3, "halo", 1),
        (2, "reduce", 1),
    ],
)
def test_an_exchange_with_its_degrees_is_a_plan(cp: int, exchange: str, ulysses: int) -> None:
    assert plan(cp=cp, exchange=exchange, ulysses=ulysses).stages[0].ulysses_degree == ulysses


@pytest.mark.parametrize(
    ("cp", "exchange", "ulysses", "legal"),
    [
        (4, "ring", 2, r"\[1\].*found 2"),
        (4, "halo", 4, r"\[1\].*found 4"),
        (4, "ulysses", 2, r"\[4\].*found 2"),
        (4, "ulysses", 1, r"\[4\].*found 1"),
        (6, "ulysses_ring", 6, r"\[2, 3\].*found 6"),
        (6, "ulysses_ring", 4, r"\[2, 3\].*found 4"),
        (3, "ulysses_ring", 3, r"\[\].*found 3"),
    ],
)
def test_a_ulysses_degree_that_does_not_fit_its_exchange_is_refused_with_the_legal_ones(
    cp: int, exchange: str, ulysses: int, legal: str
) -> None:
    with pytest.raises(ValidationError, match=legal):
        plan(cp=cp, exchange=exchange, ulysses=ulysses)


def test_heads_that_the_degree_does_not_divide_are_refused_with_the_legal_degrees() -> None:
    check_heads(stage(cp=4, exchange="ulysses", ulysses=4), num_heads=8)
    with pytest.raises(PlanInvalidError, match=r"6 heads .* ulysses_degree 4.* \[1, 2\]"):
        check_heads(stage(cp=4, exchange="ulysses", ulysses=4), num_heads=6)


def test_only_natural_shards_of_equal_rows_follow_from_the_sizes_alone() -> None:
    assert Partition().follows_from_sizes
    assert not Partition(order="metis").follows_from_sizes
    assert not Partition(balance="edges").follows_from_sizes
