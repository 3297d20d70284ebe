"""Schedules run to their end; lists that cannot are refused with who waits on whom."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanInvalidError
from planner.plan import Action, MegaGraphPlan, Stage
from planner.schedule import (
    actions_by_rank,
    check_actions,
    gpipe_actions,
    interleaved_actions,
    one_f_one_b_actions,
    play_actions,
    zero_bubble_actions,
)


def plan_with(*widths: tuple[int, int], micro_batches: int, actions=None, stages_per_group: int = 1) -> MegaGraphPlan:
    """A plan whose groups have the given (dp, cp) degrees; 1F1B unless ``actions`` per rank are given.

    With ``stages_per_group`` every group serves that many stages, interleaved.
    """
    stages, first = [], 0
    for index, (dp, cp) in enumerate(widths):
        stages.append(
            Stage(
                units=(f"block.{index}",),
                ranks=tuple(range(first, first + dp * cp)),
                dp_degree=dp,
                cp_degree=cp,
                exchange="ring" if cp > 1 else "none",
            )
        )
        first += dp * cp
    if stages_per_group > 1:
        stages = [
            stage.model_copy(update={"units": (f"block.{chunk * len(widths) + index}",)})
            for chunk in range(stages_per_group)
            for index, stage in enumerate(stages)
        ]
        per_group = interleaved_actions(
            num_groups=len(widths), stages_per_group=stages_per_group, num_micro_batches=micro_batches
        )
        actions = actions_by_rank(stages, per_group)
    if actions is None:
        per_stage = one_f_one_b_actions(num_stages=len(stages), num_micro_batches=micro_batches)
        actions = actions_by_rank(stages, per_stage)
    return MegaGraphPlan(world_size=first, stages=tuple(stages), num_micro_batches=micro_batches, actions=actions)


def test_one_stage_alternates_forward_and_backward():
    (actions,) = one_f_one_b_actions(num_stages=1, num_micro_batches=3)
    assert [(a.kind, a.micro_batch) for a in actions] == [("F", 0), ("B", 0), ("F", 1), ("B", 1), ("F", 2), ("B", 2)]


def test_gpipe_runs_all_forwards_first():
    (actions,) = gpipe_actions(num_stages=1, num_micro_batches=2)
    assert [a.kind for a in actions] == ["F", "F", "B", "B"]


@given(
    schedule=st.sampled_from([gpipe_actions, one_f_one_b_actions, zero_bubble_actions]),
    widths=st.lists(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 3)]), min_size=1, max_size=6),
    micro_batches=st.integers(1, 9),
)
def test_every_schedule_runs_to_its_end_on_every_width(schedule, widths, micro_batches):
    per_stage = schedule(num_stages=len(widths), num_micro_batches=micro_batches)
    stages = plan_with(*widths, micro_batches=micro_batches).stages
    plan = plan_with(*widths, micro_batches=micro_batches, actions=actions_by_rank(stages, per_stage))
    check_actions(plan)
    passes = 3 if schedule is zero_bubble_actions else 2
    assert sum(len(group) for _, group in play_actions(plan)) == passes * micro_batches * plan.world_size


@given(
    widths=st.lists(st.sampled_from([(1, 1), (2, 1), (1, 2)]), min_size=1, max_size=5),
    stages_per_group=st.integers(2, 4),
    micro_batches=st.integers(1, 11),
)
def test_interleaved_stages_run_to_their_end_for_any_number_of_micro_batches(widths, stages_per_group, micro_batches):
    plan = plan_with(*widths, micro_batches=micro_batches, stages_per_group=stages_per_group)
    check_actions(plan)
    played = Counter(action.kind for action, group in play_actions(plan) for _ in group)
    assert played == dict.fromkeys("FB", micro_batches * stages_per_group * plan.world_size)


def test_interleaving_takes_a_group_of_micro_batches_through_each_stage_in_turn():
    first, second = interleaved_actions(num_groups=2, stages_per_group=2, num_micro_batches=2)
    assert [f"{a.kind}{a.stage}{a.micro_batch}" for a in first] == [
        "F00",
        "F01",
        "F20",
        "F21",
        "B20",
        "B21",
        "B00",
        "B01",
    ]
    assert [f"{a.kind}{a.stage}{a.micro_batch}" for a in second] == [
        "F10",
        "F11",
        "F30",
        "B30",
        "F31",
        "B31",
        "B10",
        "B11",
    ]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_zero_bubble_holds_at_most_one_micro_batch_per_stage(num_stages):
    for actions in zero_bubble_actions(num_stages=num_stages, num_micro_batches=8):
        alive = itertools.accumulate({"F": 1, "I": 0, "W": -1}[action.kind] for action in actions)
        assert max(alive) == num_stages


def test_neighbouring_stages_may_differ_in_width():
    check_actions(plan_with((1, 1), (2, 2), (1, 2), micro_batches=4))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_1f1b_holds_at_most_as_many_micro_batches_as_stages_follow(num_stages):
    for stage, actions in enumerate(one_f_one_b_actions(num_stages=num_stages, num_micro_batches=8)):
        alive = list(itertools.accumulate(1 if action.kind == "F" else -1 for action in actions))
        assert max(alive) == num_stages - stage


def test_backward_that_waits_for_a_later_forward_is_a_deadlock():
    # stage 0 wants the gradient of micro-batch 1 first, stage 1 gives that of micro-batch 0 first
    actions = (
        (Action(0, "F", 0), Action(0, "F", 1), Action(0, "B", 1), Action(0, "B", 0)),
        (Action(1, "F", 0), Action(1, "B", 0), Action(1, "F", 1), Action(1, "B", 1)),
    )
    with pytest.raises(PlanInvalidError, match=r"rank 0 waits at B of micro-batch 1.*sends micro-batch 0 first"):
        check_actions(plan_with((1, 1), (1, 1), micro_batches=2, actions=actions))


def test_two_stages_that_wait_for_each_other_are_both_named():
    actions = (
        (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1)),
        (Action(1, "F", 0), Action(1, "F", 1), Action(1, "B", 0), Action(1, "B", 1)),
    )
    with pytest.raises(PlanInvalidError) as caught:
        check_actions(plan_with((1, 1), (1, 1), micro_batches=2, actions=actions))
    assert set(caught.value.details["waiting"]) == {"0", "1"}
    assert "rank 0 waits at B of micro-batch 0 on stage 0 for stage 1 (ranks [1])" in str(caught.value)
    assert "rank 1 waits at F of micro-batch 1 on stage 1 for stage 0 (ranks [0])" in str(caught.value)


def test_ranks_of_one_ring_must_run_the_same_action():
    order = (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1))
    other = (Action(0, "F", 1), Action(0, "B", 1), Action(0, "F", 0), Action(0, "B", 0))
    with pytest.raises(PlanInvalidError, match=r"rank 0 waits at F of micro-batch 0.*for rank 1 of its cp group"):
        check_actions(plan_with((1, 2), micro_batches=2, actions=(order, other)))


def test_replicas_of_one_stage_need_not_run_in_step():
    order = (Action(0, "F", 0), Action(0, "B", 0), Action(0, "F", 1), Action(0, "B", 1))
    other = (Action(0, "F", 1), Action(0, "B", 1), Action(0, "F", 0), Action(0, "B", 0))
    check_actions(plan_with((2, 1), micro_batches=2, actions=(order, other)))


@pytest.mark.parametrize("ranks", [(5, 6), (0, 0), (0,), (0, 1, 2)])
def test_stages_hold_the_ranks_of_the_world_each_once(ranks):
    stage = Stage(units=("block.0",), ranks=ranks, dp_degree=1, cp_degree=len(ranks), exchange="ring")
    with pytest.raises(ValueError, match=r"each of the ranks 0 to 1 once; found \["):
        MegaGraphPlan(world_size=2, stages=(stage,), actions=((), ()))


def test_stages_that_share_only_some_ranks_are_refused():
    first, second = (
        Stage(units=(unit,), ranks=ranks, dp_degree=1, cp_degree=2, exchange="ring")
        for unit, ranks in (("block.0", (0, 1)), ("block.1", (1, 2)))
    )
    with pytest.raises(ValueError, match=r"found \[\(0, 1\), \(1, 2\)\]"):
        MegaGraphPlan(world_size=4, stages=(first, second), actions=((),) * 4)


def test_a_weight_gradient_that_is_late_keeps_nobody_waiting():
    first = [Action(0, kind, m) for kind in "FIW" for m in (0, 1)]
    second = [Action(1, kind, m) for m in (0, 1) for kind in "FB"]
    check_actions(plan_with((1, 1), (1, 1), micro_batches=2, actions=(first, second)))


def test_one_group_may_serve_stages_of_different_degrees():
    narrow = Stage(units=("block.0",), ranks=(0, 1), dp_degree=2, cp_degree=1, exchange="none")
    wide = Stage(units=("block.1",), ranks=(0, 1), dp_degree=1, cp_degree=2, exchange="ring")
    actions = tuple(Action(*entry, 0) for entry in ((0, "F"), (1, "F"), (1, "B"), (0, "B")))
    check_actions(MegaGraphPlan(world_size=2, stages=(narrow, wide), actions=(actions, actions)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shard_degree": 3}, "stage 0: shard_degree 3 does not divide its 4 ranks"),
        ({"actions": ((Action(0, "F", 0), Action(0, "I", 0), Action(0, "W", 0)),) * 4}, "choose a schedule with B"),
    ],
)
def test_sharded_units_have_laws_of_their_own(change, message):
    plan = plan_with((2, 2), micro_batches=1)
    MegaGraphPlan.model_validate(plan.model_dump() | {"sharded": ("block.0",), "shard_degree": 2})
    with pytest.raises(ValueError, match=message):
        MegaGraphPlan.model_validate(plan.model_dump() | {"sharded": ("block.0",)} | change)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (("B", "F"), "B of micro-batch 0 on stage 0 and F of micro-batch 1 on stage 0"),
        (("F", "B"), None),
    ],
)
def test_replicas_of_sharded_units_run_one_list(other, message):
    in_turn = tuple(Action(0, kind, m) for m in (0, 1) for kind in "FB")
    lists = {("F", "B"): in_turn, ("B", "F"): tuple(Action(0, kind, m) for kind in "FB" for m in (0, 1))}
    plan = plan_with((2, 1), micro_batches=2, actions=(in_turn, lists[other]))
    check_actions(plan)
    sharded = plan.model_copy(update={"sharded": ("block.0",)})
    if message is None:
        check_actions(sharded)
    else:
        with pytest.raises(PlanInvalidError, match=f"block.0.*are sharded.* ranks 0 and 1 differ: {message}"):
            check_actions(sharded)


F0, B0, F1, B1 = (Action(0, kind, m) for m in (0, 1) for kind in ("F", "B"))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ((F0, B0, F1), "never runs B of micro-batch 1"),
        ((F0, B0, F1, B1, F1), "runs F of micro-batch 1 on stage 0 2 times"),
        ((B0, F0, F1, B1), "runs B of micro-batch 0 on stage 0 before F"),
        ((F0, B0, F1, B1, Action(0, "F", 2)), "cannot run F of micro-batch 2"),
        ((F0, Action(0, "W", 0), Action(0, "I", 0), F1, B1), "runs W of micro-batch 0 on stage 0 before I"),
        ((F0, Action(0, "I", 0), F1, B1), "never runs W of micro-batch 0"),
        (
            (F0, Action(0, "I", 0), Action(0, "W", 0), B0, F1, B1),
            "cannot run B of .* beside I and W",
        ),
        ((F0, B0, F1, B1, Action(1, "F", 0)), "cannot run F of micro-batch 0 on stage 1"),
    ],
)
def test_incomplete_and_disordered_lists_are_refused(actions, message):
    with pytest.raises(PlanInvalidError, match=message):
        check_actions(plan_with((1, 1), micro_batches=2, actions=(actions,)))
