"""The space holds every legal candidate, no other, and says why."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.step_time import estimate_costs
from planner.errors import NoPlanFitsError
from planner.fitting import fit_profile
from planner.schedule import check_actions
from planner.space import Candidate, build_plan, list_candidates
from tests.planner.made_up import transformer_profile, transformer_shape


def degrees(space) -> set[tuple[int, int]]:
    return {(candidate.dp_degree, candidate.cp_degree) for candidate in space.candidates}


def test_one_graph_leaves_context_parallelism_only_and_says_so():
    space = list_candidates(transformer_shape(graph_sizes=(1000,)), num_ranks=4, thread_counts=(1,))
    assert degrees(space) == {(1, 4)}
    assert any("There is one graph" in reason and "dp is 1" in reason for reason in space.reasons)


def test_one_rank_needs_no_reason():
    space = list_candidates(transformer_shape(graph_sizes=(1000,)), num_ranks=1, thread_counts=(1,))
    assert degrees(space) == {(1, 1)}
    assert space.reasons == ()


def test_many_graphs_allow_every_factorisation():
    shape = transformer_shape(graph_sizes=(60,) * 100, graphs_per_step=16)
    assert degrees(list_candidates(shape, num_ranks=4, thread_counts=(1,))) == {(1, 4), (2, 2), (4, 1)}


def test_no_replica_is_without_a_graph():
    shape = transformer_shape(graph_sizes=(60,) * 100, graphs_per_step=2)
    space = list_candidates(shape, num_ranks=4, thread_counts=(1,))
    assert degrees(space) == {(1, 4), (2, 2)}
    assert any("A step has 2 graphs" in reason for reason in space.reasons)


def test_no_rank_is_without_a_row():
    shape = transformer_shape(graph_sizes=(2, 60), graphs_per_step=8)
    space = list_candidates(shape, num_ranks=4, thread_counts=(1,))
    assert degrees(space) == {(2, 2)}
    assert any("smallest graph has 2 nodes" in reason for reason in space.reasons)


def test_more_ranks_than_rows_are_refused_with_numbers():
    with pytest.raises(NoPlanFitsError, match="a graph of 3 nodes can be cut into at most 3 shards"):
        list_candidates(transformer_shape(graph_sizes=(3,)), num_ranks=4, thread_counts=(1,))


@given(
    num_ranks=st.integers(1, 24),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    graphs_per_step=st.integers(1, 8),
    threads=st.sets(st.integers(1, 4), min_size=1),
)
def test_the_space_equals_a_filter_over_all_numbers(num_ranks, sizes, graphs_per_step, threads):
    shape = transformer_shape(graph_sizes=tuple(sizes), graphs_per_step=graphs_per_step)
    numbers = range(1, num_ranks + 1)
    step = min(graphs_per_step, len(sizes))
    legal = {
        Candidate(dp, cp, micro_batches, recompute, count)
        for dp, cp, recompute, count in itertools.product(numbers, numbers, (False, True), threads)
        if dp * cp == num_ranks and dp <= step and cp <= min(sizes)
        for micro_batches in {1, 2, 4, 8, math.ceil(step / dp)}
        if micro_batches <= math.ceil(step / dp)
    }
    try:
        found = list_candidates(shape, num_ranks=num_ranks, thread_counts=sorted(threads)).candidates
    except NoPlanFitsError:
        found = ()
    assert len(found) == len(set(found))
    assert set(found) == legal


@pytest.mark.parametrize(("dp", "cp"), [(1, 1), (1, 4), (4, 1), (2, 2)])
def test_the_plan_of_a_candidate_is_complete(dp, cp):
    shape = transformer_shape(graph_sizes=(60,) * 10, graphs_per_step=5)
    candidate = Candidate(dp_degree=dp, cp_degree=cp, num_micro_batches=3, recompute=True, num_threads=2)
    plan = build_plan(candidate, shape=shape)
    check_actions(plan)
    assert plan.world_size == dp * cp
    assert plan.stages[0].units == shape.units
    assert plan.stages[0].exchange == ("ring" if cp > 1 else "none")
    assert plan.recompute == ("block.0", "block.1")
    assert plan.num_micro_batches == 3
    assert plan.num_threads == 2


MANY = {"graph_sizes": (60,) * 100, "graphs_per_step": 16}


@pytest.mark.parametrize(
    "changes",
    [
        {"mixes": ("edges",)},
        {"mixes": ("dense", "edges")},
        {"mixes": ("edges", "sums")},
        {"mixes": ("dense", "sums"), "traffic": None},
    ],
)
def test_graphs_stay_whole_where_what_travels_has_no_price(changes):
    space = list_candidates(transformer_shape(**MANY, **changes), num_ranks=4, thread_counts=(1,))
    assert degrees(space) == {(4, 1)}
    assert any("graph stays whole" in reason and "cannot price" in reason for reason in space.reasons)
    few = transformer_shape(**{**MANY, "graphs_per_step": 2}, **changes)
    with pytest.raises(NoPlanFitsError, match="ask for num_workers 2, or set min_workers 1"):
        list_candidates(few, num_ranks=4, thread_counts=(1,))


@pytest.mark.parametrize(
    ("mixes", "exchange"),
    [
        (("dense", "edges"), "ring"),
        (("dense", "sums"), "ring"),
        (("edges",), "halo"),
        (("edges", "sums"), "halo"),
        (("sums",), "reduce"),
    ],
)
def test_one_graph_is_shared_out_however_its_rows_meet(mixes, exchange):
    shape = transformer_shape(graph_sizes=(1000,), mixes=mixes)
    (chosen, *_) = list_candidates(shape, num_ranks=4, thread_counts=(1,)).candidates
    (stage,) = build_plan(chosen, shape=shape).stages
    assert (stage.cp_degree, stage.exchange) == (4, exchange)


def test_rows_that_never_meet_are_shared_out_and_send_nothing():
    shape = transformer_shape(graph_sizes=(1000,), mixes=())
    (chosen, *_) = list_candidates(shape, num_ranks=4, thread_counts=(1,)).candidates
    plan = build_plan(chosen, shape=shape)
    assert (plan.stages[0].cp_degree, plan.stages[0].exchange) == (4, "reduce")
    profile = transformer_profile(shape, num_ranks=4)
    terms = estimate_costs(plan, shape=shape, fitted=fit_profile(profile)).stages[0].forward
    assert not any(name.startswith("ring") for name in terms)
