"""The simulator's makespan and memory against schedules worked out by hand."""

import pytest

from planner.cost.step_time import PlanCosts, StageCosts
from planner.plan import MegaGraphPlan
from planner.schedule import actions_by_rank, gpipe_actions, one_f_one_b_actions, zero_bubble_actions
from planner.simulate import simulate
from tests.planner.test_schedule import plan_with


def stage(*, forward_s=1.0, backward_s=2.0, **changes) -> StageCosts:
    return StageCosts(forward={"f": forward_s}, backward={"b": backward_s}, **changes)


def run(plan: MegaGraphPlan, *stages: StageCosts):
    return simulate(plan, PlanCosts(stages=stages))


def test_one_stage_takes_the_sum_and_then_updates():
    result = run(plan_with((1, 2), micro_batches=4), stage(update={"optimizer": 0.5}))
    assert result.step_time_s == pytest.approx(4 * 3.0 + 0.5)
    assert result.terms_s == pytest.approx({"f": 4.0, "b": 8.0, "optimizer": 0.5})


def test_even_pipelines_take_micro_batches_plus_stages_minus_one_slots():
    # GPipe on S equal stages: (M + S - 1) slots of F and of B (Huang et al., section 2.3)
    plan = plan_with((1, 1), (1, 1), (1, 1), micro_batches=4)
    plan = plan.model_copy(
        update={"actions": actions_by_rank(plan.stages, gpipe_actions(num_stages=3, num_micro_batches=4))}
    )
    result = run(plan, stage(), stage(), stage())
    assert result.step_time_s == pytest.approx((4 + 3 - 1) * (1.0 + 2.0))
    assert result.terms_s["waiting"] == pytest.approx(6.0)


def test_the_slowest_stage_sets_the_pace_of_uneven_pipelines():
    result = run(plan_with((1, 1), (1, 1), micro_batches=10), stage(), stage(forward_s=3.0, backward_s=6.0))
    assert result.step_time_s == pytest.approx(1.0 + 10 * 9.0 + 2.0)


def test_handing_over_delays_the_neighbour():
    result = run(plan_with((1, 1), (1, 1), micro_batches=1), stage(handover_s=0.25), stage(handover_s=0.5))
    assert result.step_time_s == pytest.approx(1 + 0.25 + 1 + 2 + 0.5 + 2)


def test_1f1b_holds_one_micro_batch_per_following_stage():
    costs = stage(saved_bytes=100.0, workspace_bytes=7.0, static_bytes=1000.0)
    result = run(plan_with((1, 1), (1, 1), micro_batches=6), costs, costs)
    assert result.memory_bytes == (1207.0, 1107.0)


def test_gpipe_holds_all_micro_batches():
    plan = plan_with((1, 1), micro_batches=6)
    costs = stage(saved_bytes=100.0)
    assert run(plan, costs).memory_bytes == (100.0,)
    everything = actions_by_rank(plan.stages, gpipe_actions(num_stages=1, num_micro_batches=6))
    assert run(plan.model_copy(update={"actions": everything}), costs).memory_bytes == (600.0,)


def test_writing_a_checkpoint_can_be_the_highest_point():
    costs = stage(saved_bytes=100.0, static_bytes=1000.0, after_bytes=500.0)
    assert run(plan_with((1, 1), micro_batches=1), costs).memory_bytes == (1500.0,)


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_1f1b_is_as_fast_as_gpipe_and_never_larger(num_stages):
    plan = plan_with(*[(1, 1)] * num_stages, micro_batches=7)
    gpipe = plan.model_copy(
        update={"actions": actions_by_rank(plan.stages, gpipe_actions(num_stages=num_stages, num_micro_batches=7))}
    )
    costs = [stage(saved_bytes=1.0)] * num_stages
    assert run(plan, *costs).step_time_s == pytest.approx(run(gpipe, *costs).step_time_s)
    assert max(run(plan, *costs).memory_bytes) <= max(run(gpipe, *costs).memory_bytes)
    assert plan.actions == actions_by_rank(plan.stages, one_f_one_b_actions(num_stages=num_stages, num_micro_batches=7))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
@pytest.mark.parametrize("micro_batches", [5, 8])
def test_1f1b_waits_one_slot_per_other_stage(num_stages, micro_batches):
    result = run(plan_with(*[(1, 1)] * num_stages, micro_batches=micro_batches), *[stage()] * num_stages)
    assert result.step_time_s == pytest.approx((micro_batches + num_stages - 1) * (1.0 + 2.0))


def zero_bubble(plan: MegaGraphPlan) -> MegaGraphPlan:
    per_stage = zero_bubble_actions(num_stages=len(plan.stages), num_micro_batches=plan.num_micro_batches)
    return plan.model_copy(update={"actions": actions_by_rank(plan.stages, per_stage)})


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_zero_bubble_waits_a_third_of_1f1b_and_holds_no_more(num_stages):
    # F = I = W = 1 s: (S - 1)(F + I - W) of waiting in place of (S - 1)(F + I + W) (Qi et al., section 2.3)
    plan = plan_with(*[(1, 1)] * num_stages, micro_batches=8)
    costs = [stage(weights={"b": 1.0}, saved_bytes=1.0)] * num_stages
    plain, split = run(plan, *costs), run(zero_bubble(plan), *costs)
    assert split.step_time_s == pytest.approx(8 * 3.0 + (num_stages - 1) * 1.0)
    assert plain.step_time_s == pytest.approx(8 * 3.0 + (num_stages - 1) * 3.0)
    assert max(split.memory_bytes) == max(plain.memory_bytes) == num_stages


def test_what_a_forward_saved_is_held_until_its_weight_gradient():
    result = run(zero_bubble(plan_with((1, 1), (1, 1), micro_batches=4)), *[stage(saved_bytes=100.0)] * 2)
    assert result.memory_bytes == (200.0, 200.0)


@pytest.mark.parametrize(("num_groups", "stages_per_group"), [(2, 2), (4, 2), (3, 3)])
def test_interleaving_divides_the_waiting_by_the_stages_of_a_group(num_groups, stages_per_group):
    micro_batches, work_s = 3 * num_groups, 3.0 * stages_per_group
    plan = plan_with(*[(1, 1)] * num_groups, micro_batches=micro_batches, stages_per_group=stages_per_group)
    result = run(plan, *[stage()] * len(plan.stages))
    assert result.step_time_s == pytest.approx(micro_batches * work_s + (num_groups - 1) * work_s / stages_per_group)
