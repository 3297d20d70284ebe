"""What lanes ask of a plan: every stream between two stages in one order at all its ends."""

import pytest

from planner.errors import PlanInvalidError
from planner.plan import Action
from tests.distributed.equality import Case, Width, plan_of
from tests.distributed.odd_graphs import odd_set
from workers.megagraph.pipeline_parallel import check_one_order


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_the_schedules_that_are_written_here_keep_one_order(schedule: str) -> None:
    stages = (Width(3), Width(2, cp=2), Width(1))
    check_one_order(plan_of(Case(odd_set(), stages=stages, schedule=schedule, num_micro_batches=5)))


def test_ranks_that_serve_two_stages_each_keep_one_order() -> None:
    stages = tuple(Width(units) for units in (3, 1, 1, 1))
    check_one_order(plan_of(Case(odd_set(), stages=stages, stages_per_group=2, num_micro_batches=4)))


def test_gradients_taken_in_another_order_than_they_are_sent_are_refused() -> None:
    plan = plan_of(Case(odd_set(), stages=(Width(4), Width(2)), schedule="gpipe", num_micro_batches=2))
    forward = [Action(0, "F", 0), Action(0, "F", 1)]
    turned = (*forward, Action(0, "B", 1), Action(0, "B", 0))
    other = plan.model_copy(update={"actions": (turned, plan.actions[1])})
    check_one_order(plan)
    with pytest.raises(PlanInvalidError, match=r"what stage 1 hands on \(backward\) .* reorder them"):
        check_one_order(other)
