"""How many ranks: what is measured, what is chosen, and what the plan says about it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import ClusterSpec
from planner.errors import NoPlanFitsError
from planner.planner import choose_plan, make_plan
from planner.rank_counts import MOST_COUNTS, rank_counts_to_probe
from tests.planner.made_up import (
    cluster,
    cluster_with_room,
    sampled_profile,
    sampled_shape,
    transformer_profile,
    transformer_shape,
)


def plan_sampled(*, exchange_s: float, counts: tuple[int, ...] = (1, 2), asked: int = 2):
    """A replica's share of the batch halves with every doubling of the replicas, and so does its computing."""
    shape = sampled_shape()
    profiles = [
        sampled_profile(
            shape,
            num_ranks=count,
            sample_s=8e-3 / count,
            prepare_s=4e-3 / count,
            compute_s={1: 20e-3 / count},
            exchange_s=exchange_s,
        )
        for count in counts
    ]
    return choose_plan(shape, cluster=cluster(cores=1), profiles=profiles, most_ranks=asked)


def test_replicas_are_used_where_sums_are_cheap():
    plan = plan_sampled(exchange_s=1e-3)
    assert plan.world_size == 2
    assert plan.reasons[0] == (
        "2 ranks take 0.0170 s per step, 0.0010 s of it between ranks; 1 would take 0.0320 s per step."
    )


def test_fewer_replicas_are_chosen_where_sums_cost_more_than_they_save_and_the_plan_says_so():
    plan = plan_sampled(exchange_s=30e-3)
    assert (plan.world_size, len(plan.predicted.memory_bytes)) == (1, 1)
    assert plan.reasons[0] == (
        "1 rank takes 0.0320 s per step; 2 would take 0.0460 s per step, 0.0300 s of it between ranks."
        " So 1 of the 2 ranks that the job may have are used."
    )
    other = plan.runners_up[0]
    assert other.choice.startswith("2 ranks: stages in a row")
    assert (other.step_time_s, other.lacks) == (pytest.approx(46e-3), "is 44 % slower")


def test_of_equal_plans_the_one_with_fewest_ranks_is_taken():
    plan = plan_sampled(exchange_s=16e-3)
    assert plan.world_size == 1
    assert plan.runners_up[0].lacks == "is as fast, and takes more ranks"


def test_one_profile_leaves_no_choice():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=2)
    alone = choose_plan(shape, cluster=cluster(), profiles=[profile], most_ranks=2)
    assert alone == make_plan(shape, cluster=cluster(), profile=profile, num_ranks=2)


def transformers(*counts: int):
    shape = transformer_shape(graph_sizes=(1600,))
    return shape, [transformer_profile(shape, num_ranks=count, parameter_bytes=40_000) for count in counts]


def test_a_number_of_ranks_for_which_nothing_fits_is_named_and_another_is_taken():
    shape, (one, two) = transformers(1, 2)
    alone = make_plan(shape, cluster=cluster(), profile=two, num_ranks=2)
    (node,) = cluster_with_room(max(alone.predicted.memory_bytes), num_ranks=1).nodes
    two_nodes = ClusterSpec(nodes=(node.model_copy(update={"num_cpus": 1.0}),) * 2)  # each takes one rank
    plan = choose_plan(shape, cluster=two_nodes, profiles=[one, two], most_ranks=2)
    assert plan.world_size == 2
    assert "with 1 nothing fits into the memory of a rank" in plan.reasons[0]


def test_where_nothing_fits_the_miss_of_the_most_ranks_is_told():
    (shape, profiles), nowhere = transformers(1, 2), cluster(memory_bytes=1)
    with pytest.raises(NoPlanFitsError) as alone:
        make_plan(shape, cluster=nowhere, profile=profiles[1], num_ranks=2)
    with pytest.raises(NoPlanFitsError) as caught:
        choose_plan(shape, cluster=nowhere, profiles=profiles, most_ranks=2)
    assert caught.value.message == alone.value.message


@given(exchange_s=st.floats(0.0, 0.1))
def test_a_choice_of_ranks_never_makes_a_step_longer(exchange_s):
    free = plan_sampled(exchange_s=exchange_s, counts=(1, 2, 4), asked=4)
    fixed = [plan_sampled(exchange_s=exchange_s, counts=(count,), asked=count) for count in (1, 2, 4)]
    assert free.predicted.step_time_s == min(plan.predicted.step_time_s for plan in fixed)


@pytest.mark.parametrize(
    ("fewest", "most", "counts"), [(2, 2, (2,)), (1, 4, (1, 2, 3, 4)), (1, 8, (1, 2, 4, 8)), (2, 54, (2, 6, 18, 54))]
)
def test_both_bounds_are_measured_and_few_numbers_between(fewest, most, counts):
    assert rank_counts_to_probe(sampled_shape(), fewest=fewest, most=most) == counts


@given(bounds=st.tuples(st.integers(1, 64), st.integers(1, 64)).map(sorted))
def test_no_number_is_measured_that_leaves_a_rank_idle(bounds):
    shape = transformer_shape(graph_sizes=(3, 5, 7), graphs_per_step=3)  # at most 3 replicas of at most 3 ranks
    counts = rank_counts_to_probe(shape, fewest=bounds[0], most=bounds[1])
    legal = {1, 2, 3, 4, 6, 9} & set(range(bounds[0], bounds[1] + 1))
    assert set(counts) <= (legal or {bounds[1]})
    assert len(counts) == min(MOST_COUNTS, max(1, len(legal)))
