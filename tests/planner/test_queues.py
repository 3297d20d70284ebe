"""Overlap or threads, workers and queue bounds, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import queues
from planner.caching import NO_CACHE
from planner.cost import memory
from planner.errors import ProfileMismatchError
from planner.queues import QueueCandidate
from planner.sampling import SamplingRule
from planner.sync import SyncRule
from tests.planner.made_up import MIB, sampled_profile, sampled_shape

SERIAL = QueueCandidate(pipelined=False, num_sampling_workers=1, num_threads=1)
OVERLAPPED = QueueCandidate(pipelined=True, num_sampling_workers=1, num_threads=1)


def rates_of(*, num_ranks: int = 2, **stages) -> queues.StageRates:
    profile = sampled_profile(sampled_shape(), num_ranks=num_ranks, **stages)
    return queues.read_rates(profile, batch_size=-(-512 // num_ranks))


def on_gpu(rates: queues.StageRates) -> queues.StageRates:
    """The same rates with a model on a GPU, which mini-batches are copied to in no time."""
    transfer = rates.prepare.model_copy(update={"stage": "transfer", "seconds": 0.0, "p95_s": 0.0})
    return replace(rates, transfer=transfer, compute_on_cpu=False)


def test_stages_in_a_row_take_their_sum():
    assert queues.estimate_sampled_step_s(SERIAL, rates=rates_of(), num_cores=1) == pytest.approx(17e-3)


LOCAL_SGD = SyncRule(name="local_sgd", first_period=4)
RACOM = SyncRule(name="racom", base_period=6, first_period=16)


@pytest.mark.parametrize(
    ("sync", "num_cores", "seconds"),
    [
        # sample 4 ms, prepare 2 ms, compute 10 ms; a sum of all gradients takes 12 ms
        (SyncRule(), 1, 28e-3),
        (LOCAL_SGD, 1, 19e-3),  # a mean of weights as long as that, waited for in one of 4 steps
        (RACOM, 2, 16e-3),  # means of weights and moments, 36 ms each in 6 steps, are hidden beside the steps
        (RACOM, 1, 22e-3),  # or share the core with them
        (RACOM.model_copy(update={"push": True}), 1, 34e-3),  # and pushes, one after the other
        (RACOM.model_copy(update={"drift": 0.0}), 2, 28e-3),  # nobody may lead: gradients in every step
    ],
)
def test_what_replicas_exchange_is_waited_for_or_travels_beside_the_steps(sync, num_cores, seconds):
    rates = rates_of(exchange_s=12e-3)
    found = queues.estimate_sampled_step_s(SERIAL, rates=rates, num_cores=num_cores, sync=sync)
    assert found == pytest.approx(seconds)


def test_in_a_pipeline_messages_beside_the_steps_take_a_core_and_no_place_in_the_row():
    rates = rates_of(exchange_s=12e-3)
    roomy, tight = (
        queues.estimate_sampled_step_s(OVERLAPPED, rates=rates, num_cores=cores, sync=RACOM) for cores in (4, 2)
    )
    assert roomy == pytest.approx(10e-3 * 1.05)  # compute sets the pace; in step with others it would be 22 ms
    assert tight == pytest.approx((4 + 2 + 10 + 6) / 2 * 1e-3 * 1.05)
    assert queues.sampled_terms_s(OVERLAPPED, rates=rates, sync=RACOM)["exchange"] == pytest.approx(6e-3)


def test_on_a_gpu_messages_beside_the_steps_take_nothing():
    rates = on_gpu(rates_of(exchange_s=12e-3))
    found = queues.estimate_sampled_step_s(SERIAL, rates=rates, num_cores=1, sync=RACOM)
    assert found == pytest.approx(16e-3)


def test_replicas_that_meet_less_often_are_never_predicted_slower_than_those_in_step():
    for sync in (LOCAL_SGD, RACOM, SyncRule(name="racom")):
        for candidate in (SERIAL, OVERLAPPED):
            for cores in (1, 2, 8):
                rates = rates_of(exchange_s=20e-3)
                in_step = queues.estimate_sampled_step_s(candidate, rates=rates, num_cores=cores)
                apart = queues.estimate_sampled_step_s(candidate, rates=rates, num_cores=cores, sync=sync)
                assert apart <= in_step


def test_with_cores_enough_the_slowest_stage_sets_the_pace():
    # compute 10 + exchange 1 against sample 4 and prepare 2, work 17 on 4 cores; 5 % for the overlap itself
    seconds = queues.estimate_sampled_step_s(OVERLAPPED, rates=rates_of(), num_cores=4)
    assert seconds == pytest.approx(11e-3 * 1.05)


def test_overlap_never_makes_cores_that_are_not_there():
    seconds = queues.estimate_sampled_step_s(OVERLAPPED, rates=rates_of(), num_cores=1)
    assert seconds == pytest.approx(17e-3 * 1.05)


def test_on_a_gpu_compute_takes_no_core():
    seconds = queues.estimate_sampled_step_s(OVERLAPPED, rates=on_gpu(rates_of()), num_cores=1)
    assert seconds == pytest.approx(11e-3 * 1.05)


def test_a_second_sampling_worker_halves_the_sampling_stage():
    rates = rates_of(num_ranks=1, sample_s=40e-3)
    two = QueueCandidate(pipelined=True, num_sampling_workers=2, num_threads=1)
    assert queues.estimate_sampled_step_s(two, rates=rates, num_cores=8) == pytest.approx(20e-3 * 1.05)


def remote_rates(*, num_actors: int, num_ranks: int = 2, **stages) -> queues.StageRates:
    rule = SamplingRule(placement="remote", num_actors=num_actors)
    return rates_of(num_ranks=num_ranks, **stages).made_by(rule, num_ranks=num_ranks)


def remotely(num_actors: int, *, ahead: int = 2) -> QueueCandidate:
    return QueueCandidate(pipelined=True, num_sampling_workers=ahead, num_threads=1, num_actors=num_actors)


def test_remote_actors_take_no_core_of_a_replica():
    # compute 10 + exchange 1 on one core; sample 4 + prepare 2 for two replicas by two actors go on beside it
    seconds = queues.estimate_sampled_step_s(remotely(2), rates=remote_rates(num_actors=2), num_cores=1)
    assert seconds == pytest.approx(11e-3 * 1.05)


def test_few_actors_for_many_replicas_set_the_pace():
    # 4 replicas want a mini-batch of 4 + 2 ms each, which one actor makes one after the other
    rates = remote_rates(num_actors=1, num_ranks=4)
    assert queues.estimate_sampled_step_s(remotely(1), rates=rates, num_cores=2) == pytest.approx(24e-3 * 1.05)


def test_each_replica_asks_two_ahead_of_its_part_of_the_actors():
    rates = remote_rates(num_actors=3, compute_s={1: 10e-3, 2: 6e-3})
    rule = SamplingRule(placement="remote", num_actors=3)
    found = queues.list_queue_candidates(rates, num_cores=2, sampling=rule, num_ranks=2)
    assert [(each.num_sampling_workers, each.num_threads, each.num_actors) for each in found] == [(4, 1, 3), (4, 2, 3)]
    assert all(each.pipelined for each in found)


def test_the_queue_of_remote_mini_batches_has_a_place_for_all_that_are_asked_for():
    rates = remote_rates(num_actors=8)
    (queue,) = queues.size_queues(remotely(8, ahead=8), rates=rates, step_time_s=11e-3, budget_bytes=1000 * MIB)
    assert (queue.name, queue.max_items) == ("remote", 8)
    (tight,) = queues.size_queues(remotely(8, ahead=8), rates=rates, step_time_s=11e-3, budget_bytes=3 * MIB)
    assert (tight.max_items, tight.max_bytes) == (3, 3 * MIB)


def test_a_replica_holds_no_sampler_where_others_sample():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=2)
    local = queues.read_rates(profile, batch_size=256)
    rule = SamplingRule(placement="remote")
    options = {"shape": shape, "profile": profile, "queues": ()}
    here = queues.estimate_sampled_memory(OVERLAPPED, rates=local, **options)
    elsewhere = queues.estimate_sampled_memory(remotely(2), rates=local.made_by(rule, num_ranks=2), **options)
    assert elsewhere.host_bytes < here.host_bytes


def test_threads_and_workers_together_never_exceed_the_cores():
    rates = rates_of(compute_s={1: 10e-3, 2: 6e-3, 8: 3e-3})

    def listed(num_cores: float, *, pipelined: bool) -> set[tuple[int, int]]:
        found = queues.list_queue_candidates(rates, num_cores=num_cores)
        return {(c.num_threads, c.num_sampling_workers) for c in found if c.pipelined == pipelined}

    assert listed(2.5, pipelined=False) == {(1, 1), (2, 1)}
    assert listed(2.5, pipelined=True) == {(1, 1)}
    assert listed(3, pipelined=True) == {(1, 1), (1, 2), (2, 1)}
    assert listed(0.5, pipelined=False) == {(1, 1)}
    assert listed(0.5, pipelined=True) == set()


def test_two_compute_threads_on_two_cores_leave_none_for_overlap():
    # measured on two cores: 0.127 s in a row on two threads, 0.17 to 0.25 s for any pipeline
    rates = rates_of(num_ranks=1, sample_s=0.015, prepare_s=0.010, compute_s={1: 0.18, 2: 0.102})
    best = min(
        queues.list_queue_candidates(rates, num_cores=2),
        key=lambda candidate: queues.estimate_sampled_step_s(candidate, rates=rates, num_cores=2),
    )
    assert (best.pipelined, best.num_threads) == (False, 2)


def test_on_a_gpu_sampling_workers_may_take_all_cores():
    candidates = queues.list_queue_candidates(on_gpu(rates_of()), num_cores=2)
    assert max(candidate.num_sampling_workers for candidate in candidates if candidate.pipelined) == 2


def test_a_queue_bridges_the_slow_batches_of_its_producer():
    # pace 11.55 ms; p95 of sampling 60 ms: ceil(60 / 11.55) + 1 = 7 items; of preparing 3 ms: 2 items
    rates = rates_of(sample_s=40e-3)
    sample, prepare = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=11.55e-3, budget_bytes=1000 * MIB)
    assert (sample.name, sample.max_items) == ("sample", 7)
    assert (prepare.name, prepare.max_items) == ("prepare", 2)
    assert prepare.max_bytes == 3 * MIB


def test_stages_in_a_row_have_no_queues():
    assert queues.size_queues(SERIAL, rates=rates_of(), step_time_s=1.0, budget_bytes=MIB) == ()


@given(
    budget=st.integers(1, 10 * MIB),
    batch=st.integers(10, 5 * MIB),
    sample_s=st.floats(1e-5, 1.0),
    step_s=st.floats(1e-4, 1.0),
)
def test_queued_bytes_never_exceed_the_budget(budget, batch, sample_s, step_s):
    rates = rates_of(sample_s=sample_s, batch_bytes=batch)
    bounds = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=step_s, budget_bytes=budget)
    assert sum(queue.max_bytes for queue in bounds) <= max(budget, len(bounds))
    assert all(queue.max_items >= 1 for queue in bounds)


def memory_of(candidate, *, shape, profile, bounds=(), rates=None) -> queues.SampledMemory:
    rates = rates or queues.read_rates(profile, batch_size=256)
    return queues.estimate_sampled_memory(candidate, shape=shape, rates=rates, queues=bounds, profile=profile)


# 1,000 nodes: evaluation is small beside a step. Pages, tables of sampler and evaluation, six arrays of training nodes.
SMALL = {"num_nodes": 1000, "num_edges": 2000, "num_train": 512, "graph_bytes": 5_000_000, "hidden_size": 16}
SMALL_GRAPH = 5_000_000 + 24 * 1000 + 48 * 512
# One hidden matrix; of the first layer, whose rows all fit into a chunk, inputs and sums and three outputs; its edges.
SMALL_EVALUATION = 1 * 1000 * 16 * 4 + 1000 * (2 * 100 + 3 * 16) * 4 + 16 * MIB // 48 * 48


def test_memory_adds_up_by_hand():
    shape = sampled_shape(**SMALL)
    batch = 8 * MIB
    profile = sampled_profile(shape, num_ranks=2, batch_bytes=batch)
    needed = memory_of(SERIAL, shape=shape, profile=profile)
    state, in_hand = 10 * MIB + 6 * 400_000, 1.5 * batch
    step = batch // 10 + batch + 4 * batch
    assert step > SMALL_EVALUATION
    assert needed.model_bytes == pytest.approx(1.1 * (state + SMALL_GRAPH + in_hand + step) + 32 * MIB, abs=2)
    assert needed.host_bytes == needed.model_bytes


def test_evaluation_of_a_large_graph_can_be_the_highest_point():
    shape = sampled_shape(num_nodes=1_000_000, largest_degree=999_999, hidden_size=128, num_layers=3)
    profile = sampled_profile(shape, num_ranks=2)
    state = 10 * MIB + 6 * 400_000
    graph, in_hand = 5_000_000 + 24 * 1_000_000 + 48 * 5_000, 1.5 * MIB
    # two hidden matrices; a hub's neighbours are all nodes; its edges
    evaluation = 2 * 512_000_000 + 5 * 512_000_000 + 48 * 1_000_000
    needed = memory_of(SERIAL, shape=shape, profile=profile).model_bytes
    assert needed == pytest.approx(1.1 * (state + graph + in_hand + evaluation) + 32 * MIB, abs=2)


def test_an_evaluation_that_was_weighed_counts_as_it_was():
    shape = sampled_shape(num_nodes=1_000_000, hidden_size=0)
    profile = sampled_profile(shape, num_ranks=2)
    weighed = profile.stages[0].model_copy(update={"stage": "evaluate", "peak_bytes": 900 * MIB})
    known = profile.model_copy(update={"stages": (*profile.stages, weighed)})
    state, in_hand = 10 * MIB + 6 * 400_000, 1.5 * MIB
    graph = 5_000_000 + 24 * 1_000_000 + 48 * 5_000
    needed = memory_of(SERIAL, shape=shape, profile=known).model_bytes
    assert needed == pytest.approx(1.1 * (state + graph + in_hand + 900 * MIB) + 32 * MIB, abs=2)


def test_wide_features_make_no_wide_outputs_and_few_edges_in_a_chunk():
    sizes = {"num_nodes": 20_000, "largest_degree": 100, "element_bytes": 4}
    visits = 16 * MIB // 4000  # nodes and edges of a chunk whose rows are as wide as the features
    sage = memory.layerwise_evaluation_bytes(model="graphsage", widths=(1000, 10, 10), **sizes)
    hidden, edges = 20_000 * 10 * 4, 48 * visits
    assert sage == hidden + visits * (2 * 1000 + 3 * 10) * 4 + edges
    assert memory.layerwise_evaluation_bytes(model="gcn", widths=(1000, 10, 10), **sizes) > 2 * sage


def test_overlapped_stages_go_on_holding_what_they_have_during_an_evaluation():
    shape = sampled_shape(num_nodes=100_000, hidden_size=512)
    profile = sampled_profile(shape, num_ranks=2)
    serial, overlapped = (
        memory_of(candidate, shape=shape, profile=profile).model_bytes for candidate in (SERIAL, OVERLAPPED)
    )
    feeding = MIB // 10 + MIB
    assert overlapped - serial == pytest.approx(1.1 * feeding, abs=2)


def test_queues_take_their_bounds_and_at_least_one_large_item():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=2)
    rates = queues.read_rates(profile, batch_size=256)

    def queued(budget_bytes: int) -> float:
        bounds = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=0.01, budget_bytes=budget_bytes)
        needed = memory_of(OVERLAPPED, shape=shape, profile=profile, bounds=bounds).model_bytes
        return (needed - memory_of(OVERLAPPED, shape=shape, profile=profile).model_bytes) / 1.1

    roomy = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=0.01, budget_bytes=100 * MIB)
    assert queued(100 * MIB) == pytest.approx(sum(queue.max_bytes for queue in roomy), abs=2)
    assert queued(1000) == pytest.approx(1.5 * (MIB // 10) + 1.5 * MIB, abs=2)


def test_a_gpu_and_its_host_are_two_sums():
    shape = sampled_shape(**SMALL)
    profile = sampled_profile(shape, num_ranks=2)
    rates = on_gpu(queues.read_rates(profile, batch_size=256))
    bounds = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=0.01, budget_bytes=100 * MIB)
    needed = memory_of(OVERLAPPED, shape=shape, profile=profile, bounds=bounds, rates=rates)
    sample, prepare, transfer = (queue.max_bytes for queue in bounds)
    state = 10 * MIB + 6 * 400_000
    on_device = state + transfer + 1.5 * MIB + MIB + SMALL_EVALUATION
    assert needed.model_bytes == pytest.approx(1.1 * on_device + 32 * MIB, abs=2)
    in_main = SMALL_GRAPH + sample + prepare + 1.5 * MIB + MIB // 10 + MIB + SMALL_EVALUATION
    assert needed.host_bytes == pytest.approx(1.1 * in_main + 32 * MIB, abs=2)


@pytest.mark.parametrize("missing", ["sample", "prepare", "compute", "exchange"])
def test_a_profile_without_a_stage_is_refused_by_name(missing):
    profile = sampled_profile(sampled_shape(), num_ranks=2)
    holed = profile.model_copy(update={"stages": tuple(s for s in profile.stages if s.stage != missing)})
    with pytest.raises(ProfileMismatchError, match=missing):
        queues.read_rates(holed, batch_size=256)


def test_other_batch_sizes_are_not_mixed_in():
    with pytest.raises(ProfileMismatchError, match="at 99 seeds"):
        queues.read_rates(sampled_profile(sampled_shape(), num_ranks=2), batch_size=99)


def test_the_plan_hands_the_jobs_rule_on_and_counts_what_its_replicas_keep_and_may_take():
    def needed(rule: SyncRule) -> int:
        shape = sampled_shape(sync=rule)
        profile = sampled_profile(shape, num_ranks=2)
        rates = queues.read_rates(profile, batch_size=256)
        found = queues.estimate_sampled_memory(SERIAL, shape=shape, rates=rates, queues=(), profile=profile)
        plan = queues.build_sampled_plan(SERIAL, shape=shape, num_ranks=2, queues=(), cache=NO_CACHE)
        assert plan.sync == rule
        return found.model_bytes

    every_step = needed(SyncRule())
    assert needed(SyncRule(name="racom", drift=0)) == every_step
    assert needed(SyncRule(name="local_sgd")) > every_step
    assert needed(SyncRule(name="racom")) - every_step > 4 * MIB  # at twice the seeds, compute alone takes 4 MiB more
