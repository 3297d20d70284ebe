"""Cost terms against numbers worked out by hand."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost import communication, compute, memory
from planner.cost.compute import largest_work, mean_work, total_work
from planner.cost.shard_load import find_shard_load
from planner.cost.step_time import estimate_costs
from planner.errors import PlanInvalidError
from planner.fitting import Link, Work, fit_profile
from planner.profiles import LinkSample, ShardCounts, Traffic
from planner.space import Candidate, build_plan
from planner.sync import SyncRule
from tests.planner.made_up import MIB, transformer_profile, transformer_shape
from workers.comm.axis import Axis
from workers.comm.ring import RingExchange
from workers.megagraph.data_parallel import deal
from workers.ops.row_layout import RowLayout

LINK = Link(alpha_s=1e-4, beta_s_per_byte=1e-9)


@dataclass(frozen=True)
class Echo:
    """What arrives where nothing was sent."""

    tensor: torch.Tensor

    def wait(self) -> torch.Tensor:
        return self.tensor


def largest(sizes, *, step, replicas=1, micro_batches=1, cp_degree=1) -> Work:
    return largest_work(
        sizes,
        graphs_per_step=step,
        num_replicas=replicas,
        num_micro_batches=micro_batches,
        cp_degree=cp_degree,
    )


def test_the_fullest_rank_holds_the_rounded_up_rows():
    assert mean_work((1000,), num_graphs=1, cp_degree=3) == Work(num_visits=3, num_rows=334, num_pairs=334_000)
    cut = largest((1000,), step=1, cp_degree=3)
    assert (cut.num_rows, cut.num_pairs) == pytest.approx((334, 334_000))


def test_mean_work_averages_the_squares_not_the_square_of_the_average():
    # sizes 10 and 30 on one rank: pairs (100 + 900) / 2, not 20 squared; three graphs of that kind
    assert mean_work((10, 30), num_graphs=3, cp_degree=1) == Work(num_visits=3, num_rows=60, num_pairs=1500)
    assert total_work((10, 30), cp_degree=1) == Work(num_visits=2, num_rows=40, num_pairs=1000)


def test_one_micro_batch_of_a_step_may_hold_its_largest_graphs():
    assert largest((10, 30, 20), step=2) == Work(num_visits=2, num_rows=50, num_pairs=1300)


@settings(max_examples=200)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    step=st.integers(1, 12),
    replicas=st.integers(1, 3),
    micro_batches=st.integers(1, 3),
    cp_degree=st.integers(1, 3),
)
def test_no_hand_that_is_dealt_exceeds_the_largest_work(sizes, step, replicas, micro_batches, cp_degree):
    bound = largest(sizes, step=step, replicas=replicas, micro_batches=micro_batches, cp_degree=cp_degree)
    for start in range(0, len(sizes), step):
        batch = sizes[start : start + step]
        for hand in deal([size**2 for size in batch], num_hands=replicas):
            mine = [batch[place] for place in hand]
            for part in deal([size**2 for size in mine], num_hands=micro_batches):
                rows = [-(-mine[place] // cp_degree) for place in part]
                pairs = sum(row * mine[place] for row, place in zip(rows, part, strict=True))
                assert len(part) * cp_degree <= bound.num_visits * (1 + 1e-9)
                assert sum(rows) <= bound.num_rows * (1 + 1e-9)
                assert pairs <= bound.num_pairs * (1 + 1e-9)


def test_ring_forward_sends_two_shards_per_shift():
    # N=1000, d=64, P=4: 2 * 16,000 elements, three shifts
    assert communication.ring_forward_elements(num_nodes=1000, hidden_size=64, cp_degree=4) == 96_000
    assert communication.estimate_ring_forward_s(LINK, shard_bytes=128_000, cp_degree=4) == pytest.approx(
        3 * (1e-4 + 1.28e-4)
    )


def test_ring_backward_brings_dk_and_dv_home():
    # three messages of K and V, four of dK and dV
    assert communication.ring_backward_elements(num_nodes=1000, hidden_size=64, cp_degree=4) == 32_000 * 7
    assert communication.estimate_ring_backward_s(LINK, shard_bytes=128_000, cp_degree=4) == pytest.approx(
        7 * (1e-4 + 1.28e-4)
    )


@pytest.mark.parametrize("cp_degree", [2, 3, 4])
def test_every_message_that_the_ring_sends_is_charged_its_latency(cp_degree, monkeypatch):
    ring = RingExchange(Axis(ranks=tuple(range(cp_degree)), index=0))
    sent = []
    monkeypatch.setattr(ring, "_pass_on", lambda tensor, *_, **__: sent.append(tensor) or Echo(tensor.clone()))
    layout = RowLayout(sizes=((4,),) * cp_degree)
    latency = {"link": Link(alpha_s=1.0, beta_s_per_byte=0.0), "shard_bytes": 1, "cp_degree": cp_degree}
    ring.visit_and_sum(torch.ones(4, 2), layout=layout, visitor=lambda _, block: block.clone())
    assert communication.estimate_ring_backward_s(**latency) == len(sent)
    sent.clear()
    ring.visit(torch.ones(4, 2), layout=layout, visitor=lambda *_: None)
    assert communication.estimate_ring_forward_s(**latency) == len(sent)


def test_shifts_hide_behind_work_where_they_can():
    # a shift of 228 µs behind 200 µs of work shows 28 µs; behind 300 µs nothing
    forward_s = communication.estimate_ring_forward_s(LINK, shard_bytes=128_000, cp_degree=4, hidden_s=2e-4)
    assert forward_s == pytest.approx(3 * 0.28e-4)
    assert communication.estimate_ring_forward_s(LINK, shard_bytes=128_000, cp_degree=4, hidden_s=3e-4) == 0
    backward_s = communication.estimate_ring_backward_s(LINK, shard_bytes=128_000, cp_degree=4, hidden_s=1.0)
    assert backward_s == pytest.approx(2.28e-4)
    # behind 300 µs: one message hides in the first and in the last step; of the two between, 456 µs, 156 show each time
    backward_s = communication.estimate_ring_backward_s(LINK, shard_bytes=128_000, cp_degree=4, hidden_s=3e-4)
    assert backward_s == pytest.approx(2 * 1.56e-4 + 2.28e-4)


def test_a_ring_of_one_sends_nothing():
    assert communication.ring_forward_elements(num_nodes=1000, hidden_size=64, cp_degree=1) == 0
    assert communication.ring_backward_elements(num_nodes=1000, hidden_size=64, cp_degree=1) == 0
    assert communication.estimate_ring_forward_s(LINK, shard_bytes=1e9, cp_degree=1) == 0
    assert communication.estimate_ring_backward_s(LINK, shard_bytes=1e9, cp_degree=1) == 0


def test_ulysses_halo_and_linear_sums_by_hand():
    assert communication.ulysses_elements(num_nodes=100, hidden_size=8, cp_degree=4) == 4 * 200 * 3 / 4
    assert communication.halo_elements(halo_rows=7, hidden_size=8) == 2 * 8 * 7
    assert communication.linear_reduce_elements(num_heads=2, head_size=4) == 2 * 16 + 8 + 2


def test_ulysses_sends_less_than_the_ring_from_three_ranks_on():
    sizes = {"num_nodes": 120, "hidden_size": 8}
    for cp_degree in range(3, 9):
        ring = communication.ring_forward_elements(**sizes, cp_degree=cp_degree)
        assert communication.ulysses_elements(**sizes, cp_degree=cp_degree) < ring


def test_all_reduce_and_handover_follow_the_line():
    assert communication.estimate_all_reduce_s(LINK, num_bytes=400_000) == pytest.approx(1e-4 + 4e-4)
    seconds = communication.estimate_handover_s(LINK, num_rows=100, hidden_size=64, element_bytes=4)
    assert seconds == pytest.approx(1e-4 + 25_600e-9)


def test_model_state_is_five_times_the_parameters():
    # parameters, gradients, two moments, best copy
    assert memory.model_state_bytes(1_000) == 5_000
    assert memory.gradient_bucket_bytes(1_000, num_ranks=1) == 0
    assert memory.gradient_bucket_bytes(1_000, num_ranks=2) == 1_000
    assert memory.checkpoint_bytes(1_000) == 8_000


def test_replicas_that_step_by_themselves_keep_messages_copies_and_pushes():
    def by_hand(num_ranks: int = 2, **rule) -> int:
        return memory.sync_bytes(1_000, rule=SyncRule(**rule), num_ranks=num_ranks)

    assert by_hand(name="ddp") == by_hand(name="racom", staleness=0) == by_hand(name="racom", num_ranks=1) == 0
    assert by_hand(name="local_sgd") == 10_000
    assert by_hand(name="racom") == 17_000
    assert by_hand(name="racom", push=True, num_ranks=3) == 26_000


def test_index_inputs_and_ring_buffers_by_hand():
    work = Work(num_visits=1, num_rows=500, num_pairs=500_000)
    assert memory.pair_index_bytes(work, pair_bytes=1) == 500_000
    assert memory.input_bytes(work, num_features=100, element_bytes=4) == 500 * (2 * 400 + 25)
    joined = {"num_features": 100, "element_bytes": 4}
    assert memory.joined_input_bytes(work, **joined, graphs_per_step=1) == 0
    assert memory.joined_input_bytes(work, **joined, graphs_per_step=2) == 500 * (400 + 25)
    assert memory.ring_shard_bytes(work, hidden_size=64, element_bytes=4) == 2 * 500 * 64 * 4
    assert memory.ring_buffer_bytes(256_000, cp_degree=2) == 4 * 256_000
    assert memory.ring_buffer_bytes(256_000, cp_degree=1) == 0


def test_near_pairs_are_charged_as_those_of_the_heaviest_rows_by_hand():
    work, near_pairs = Work(num_visits=1, num_rows=500, num_pairs=500_000), (9_000, 6_000, 4_000)
    by_degree = {1: 9_000, 2: 6_000, 3: 6_000, 4: 4_000, 64: 4_000}
    for cp_degree, pairs in by_degree.items():
        index_bytes = memory.near_index_bytes(work, near_pairs=near_pairs, cp_degree=cp_degree)
        assert index_bytes == 5 * pairs + 8 * 500, cp_degree
    assert memory.near_index_bytes(work, near_pairs=(), cp_degree=2) == 0


def test_the_margin_is_a_tenth_and_32_mib():
    assert memory.with_margin(100 * MIB) == 110 * MIB + 32 * MIB


def test_recomputing_swaps_saved_bytes_for_workspace():
    curves = fit_profile(transformer_profile(transformer_shape(), num_ranks=1)).unit("block", 1)
    work = Work(num_visits=1, num_rows=400, num_pairs=160_000)
    assert memory.saved_bytes(curves, work) == pytest.approx(400_000)
    assert memory.workspace_bytes(curves, work, recompute=False) == pytest.approx(800_000 + 640_000 - 400_000)
    assert memory.workspace_bytes(curves, work, recompute=True) == pytest.approx(1_440_000)
    assert memory.hidden_bytes(work, hidden_size=64, element_bytes=4) == 400 * 64 * 4


def candidate(**changes) -> Candidate:
    values = {"dp_degree": 1, "cp_degree": 1, "num_micro_batches": 1, "recompute": False, "num_threads": 1}
    return Candidate(**{**values, **changes})


@pytest.fixture
def costs_of():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=2)

    def price(*, cp_degree: int, recompute: bool = False):
        plan = build_plan(candidate(cp_degree=cp_degree, recompute=recompute), shape=shape)
        return estimate_costs(plan, shape=shape, fitted=fit_profile(profile))

    return price


def test_a_stage_adds_up_its_units_by_hand(costs_of):
    (stage,) = costs_of(cp_degree=2).stages
    block_s = 6e-4 + 2 * 4e-4 + 500e-6 + 500_000e-8
    shard_s = 1e-4 + 2 * 500 * 64 * 4 / 1e9
    assert stage.forward == pytest.approx(
        {"features_forward": 500e-6, "block_forward": 2 * block_s, "head_forward": 500e-6, "ring_forward": 2 * shard_s}
    )
    assert stage.backward["block_backward"] == pytest.approx(4 * block_s)
    assert stage.update == pytest.approx(
        {"optimizer": 5e-4, "loss_all_reduce": 1e-4 + 16e-9, "gradient_all_reduce": 1e-4 + 4e-4}
    )
    assert stage.handover_s == 0


@pytest.mark.parametrize(
    ("changes", "partition"),
    [({"exchange": "halo"}, {}), ({"exchange": "ulysses", "ulysses_degree": 2}, {}), ({}, {"order": "metis"})],
)
def test_what_has_no_price_is_refused_and_never_guessed(changes, partition):
    shape = transformer_shape()
    plan = build_plan(candidate(cp_degree=2), shape=shape)
    changed = plan.model_copy(
        update={
            "stages": tuple(stage.model_copy(update=changes) for stage in plan.stages),
            "partition": plan.partition.model_copy(update=partition),
        }
    )
    with pytest.raises(PlanInvalidError, match="prices the exchanges none and ring"):
        estimate_costs(changed, shape=shape, fitted=fit_profile(transformer_profile(shape, num_ranks=2)))


EDGES = {
    "mixes": ("edges", "sums"),
    "num_edges": 4000,
    "traffic": Traffic(halos=(64, 128), sums=(100,), batch_sums=(65, 64)),
    "shards": (ShardCounts(cp_degree=2, most_edges=3000, halo_rows=200),),
}


def price_edges(**changes):
    shape = transformer_shape(**{**EDGES, **changes})
    plan = build_plan(candidate(cp_degree=2), shape=shape)
    return estimate_costs(plan, shape=shape, fitted=fit_profile(transformer_profile(shape, num_ranks=2))).stages[0]


def test_halos_and_sums_of_two_blocks_by_hand():
    stage = price_edges()
    rows = 500 * 1.5  # 3,000 edges where 2,000 are the mean
    block_s = 6e-4 + 2 * 4e-4 + rows * 1e-6 + 500_000e-8
    halos_s = (1e-4 + 200 * 64 * 4e-9) + (1e-4 + 200 * 128 * 4e-9)
    sums_s = 3 * 1e-4 + (100 + 65 + 64) * 4e-9
    assert stage.forward["block_forward"] == pytest.approx(2 * block_s)
    assert stage.forward["halo_forward"] == stage.backward["halo_backward"] == pytest.approx(2 * halos_s)
    assert stage.forward["sums_forward"] == stage.backward["sums_backward"] == pytest.approx(2 * sums_s)
    assert "ring_forward" not in stage.forward


def test_memory_of_halos_by_hand():
    stage, without = price_edges(), price_edges(traffic=Traffic())
    joined = (500 + 200) * (64 + 128) * 4
    assert stage.saved_bytes - without.saved_bytes == pytest.approx(2 * joined)
    assert stage.workspace_bytes - without.workspace_bytes == pytest.approx(2 * joined)


def test_edges_that_nobody_counted_are_bounded():
    counted, bounded = price_edges(), price_edges(shards=())
    assert bounded.forward["block_forward"] > counted.forward["block_forward"]
    assert bounded.saved_bytes > counted.saved_bytes
    load = find_shard_load(transformer_shape(**{**EDGES, "shards": ()}), cp_degree=2)
    assert (load.edge_skew, load.halo_rows) == (2.0, 500)
    spread = Traffic(halos=(64,), expander_degree=4)
    assert find_shard_load(transformer_shape(**{**EDGES, "traffic": spread}), cp_degree=2).halo_rows == 500


def test_a_halo_is_a_message_for_every_peer():
    assert communication.estimate_halo_s(LINK, num_bytes=300_000, cp_degree=4) == pytest.approx(3e-4 + 3e-4)
    assert communication.estimate_halo_s(LINK, num_bytes=300_000, cp_degree=1) == 0
    assert communication.most_halo_rows(num_nodes=10, num_edges=100, cp_degree=3) == 7
    assert communication.most_halo_rows(num_nodes=10, num_edges=4, cp_degree=3) == 4


def test_recompute_runs_forward_and_its_ring_again(costs_of):
    (kept,) = costs_of(cp_degree=2).stages
    (recomputed,) = costs_of(cp_degree=2, recompute=True).stages
    again = kept.forward["block_forward"] + kept.forward["ring_forward"]
    assert recomputed.backward["recompute"] == pytest.approx(again)
    assert sum(recomputed.backward.values()) == pytest.approx(sum(kept.backward.values()) + again)
    assert recomputed.saved_bytes < kept.saved_bytes


def test_stage_memory_by_hand(costs_of):
    (stage,) = costs_of(cp_degree=2).stages
    assert stage.saved_bytes == pytest.approx(2 * 500_000 + 50_000 + 25_000)
    assert stage.workspace_bytes == pytest.approx(1_000_000 + 2_000_000 - 500_000 + 8 * 500 * 64 * 4)
    static = 10 * MIB + 5 * 400_000 + 400_000 + 500 * (2 * 100 * 4 + 25) + 500_000
    assert stage.static_bytes == pytest.approx(static)


def test_sizes_beyond_the_profile_are_named_as_guesses(costs_of):
    assert costs_of(cp_degree=1).guesses == ()
    shape = transformer_shape(graph_sizes=(5000,))
    profile = transformer_profile(shape, num_ranks=1)
    guesses = estimate_costs(build_plan(candidate(), shape=shape), shape=shape, fitted=fit_profile(profile)).guesses
    assert any("5000 rows and 25000000 pairs" in guess and "of block" in guess for guess in guesses)


def test_gradients_beyond_the_measured_payloads_are_named_as_a_guess():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=2, parameter_bytes=5_000_000)
    plan = build_plan(candidate(cp_degree=2), shape=shape)
    guesses = estimate_costs(plan, shape=shape, fitted=fit_profile(profile)).guesses
    assert any(guess.startswith("5000000 bytes of gradients") for guess in guesses)


def test_samples_that_fit_no_curve_are_named_as_rough():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=1)
    disturbed = tuple(
        unit.model_copy(update={"forward_s": 3 * unit.forward_s}) if unit.num_rows == 400 else unit
        for unit in profile.units
    )
    fitted = fit_profile(profile.model_copy(update={"units": disturbed}))
    guesses = estimate_costs(build_plan(candidate(), shape=shape), shape=shape, fitted=fitted).guesses
    assert any("block" in guess and "miss their samples" in guess for guess in guesses)


def test_links_that_follow_no_line_are_named_as_rough():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=2)
    late = LinkSample(operation="p2p", world_size=2, num_bytes=2**18, seconds=0.1)
    fitted = fit_profile(profile.model_copy(update={"links": (*profile.links, late)}))
    guesses = estimate_costs(build_plan(candidate(cp_degree=2), shape=shape), shape=shape, fitted=fitted).guesses
    assert any("The curves of p2p miss their samples" in guess for guess in guesses)
    alone = estimate_costs(build_plan(candidate(), shape=shape), shape=shape, fitted=fitted).guesses
    assert not any("miss their samples" in guess for guess in alone)


def test_graphs_that_are_only_evaluated_take_memory_and_no_time():
    plain, more = transformer_shape(), transformer_shape(other_graph_sizes=(300,))
    fitted = fit_profile(transformer_profile(plain, num_ranks=1))
    (without,) = estimate_costs(build_plan(candidate(), shape=plain), shape=plain, fitted=fitted).stages
    (beside,) = estimate_costs(build_plan(candidate(), shape=more), shape=more, fitted=fitted).stages
    assert beside.static_bytes - without.static_bytes == 300 * 300 + 300 * (2 * 100 * 4 + 25)
    assert (beside.forward, beside.backward) == (without.forward, without.backward)


def test_evaluating_the_largest_graph_can_be_the_highest_point():
    # 1,600 rows: the input of a block, and its peak of 2,000 bytes a row and 4 bytes a pair
    shape = transformer_shape(graph_sizes=(100,), other_graph_sizes=(1600, 300))
    fitted = fit_profile(transformer_profile(shape, num_ranks=1))
    (stage,) = estimate_costs(build_plan(candidate(), shape=shape), shape=shape, fitted=fitted).stages
    assert stage.after_bytes == pytest.approx(1600 * 64 * 4 + 2000 * 1600 + 4 * 1600**2)


def test_a_micro_batch_of_many_graphs_pays_the_constant_once():
    shape = transformer_shape(graph_sizes=(100,) * 8, graphs_per_step=8)
    fitted = fit_profile(transformer_profile(shape, num_ranks=1))

    def forward_s(num_micro_batches):
        plan = build_plan(candidate(num_micro_batches=num_micro_batches), shape=shape)
        return num_micro_batches * sum(estimate_costs(plan, shape=shape, fitted=fitted).stages[0].forward.values())

    # two blocks, 0.6 ms each per micro-batch that is not per graph
    assert forward_s(8) - forward_s(1) == pytest.approx(7 * 2 * 6e-4)


def test_a_short_last_step_lowers_the_mean():
    whole = transformer_shape(graph_sizes=(100,) * 8, graphs_per_step=8)
    short = transformer_shape(graph_sizes=(100,) * 12, graphs_per_step=8)
    fitted = fit_profile(transformer_profile(whole, num_ranks=1))

    def head_s(shape):
        return (
            estimate_costs(build_plan(candidate(), shape=shape), shape=shape, fitted=fitted)
            .stages[0]
            .forward["head_forward"]
        )

    assert head_s(short) == pytest.approx(6 / 8 * head_s(whole))


def test_the_optimizer_does_not_depend_on_the_graph():
    curves = fit_profile(transformer_profile(transformer_shape(), num_ranks=1)).unit("optimizer", 1)
    assert compute.estimate_optimizer_s(curves) == pytest.approx(5e-4)
