"""Overlap or threads, workers and queue bounds, against numbers worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import queues
from planner.errors import ProfileMismatchError
from planner.queues import QueueCandidate
from tests.planner.made_up import MIB, sampled_profile, sampled_shape

SERIAL = QueueCandidate(pipelined=False, num_sampling_workers=1, num_threads=1)
OVERLAPPED = QueueCandidate(pipelined=True, num_sampling_workers=1, num_threads=1)


def rates_of(*, num_ranks: int = 2, **stages) -> queues.StageRates:
    profile = sampled_profile(sampled_shape(), num_ranks=num_ranks, **stages)
    return queues.read_rates(profile, batch_size=-(-512 // num_ranks))


def test_stages_in_a_row_take_their_sum():
    assert queues.estimate_sampled_step_s(SERIAL, rates=rates_of(), num_cores=1) == pytest.approx(17e-3)


def test_with_cores_enough_the_slowest_stage_sets_the_pace():
    # compute 10 + exchange 1 against sample 4 and prepare 2, work 17 on 4 cores; 5 % for the overlap itself
    seconds = queues.estimate_sampled_step_s(OVERLAPPED, rates=rates_of(), num_cores=4)
    assert seconds == pytest.approx(11e-3 * 1.05)


def test_overlap_never_makes_cores_that_are_not_there():
    seconds = queues.estimate_sampled_step_s(OVERLAPPED, rates=rates_of(), num_cores=1)
    assert seconds == pytest.approx(17e-3 * 1.05)


def test_on_a_gpu_compute_takes_no_core():
    rates = rates_of()
    on_gpu = queues.StageRates(
        sample=rates.sample, prepare=rates.prepare, compute=rates.compute, exchange=rates.exchange, compute_on_cpu=False
    )
    assert queues.estimate_sampled_step_s(OVERLAPPED, rates=on_gpu, num_cores=1) == pytest.approx(11e-3 * 1.05)


def test_a_second_sampling_worker_halves_the_sampling_stage():
    rates = rates_of(num_ranks=1, sample_s=40e-3)
    two = QueueCandidate(pipelined=True, num_sampling_workers=2, num_threads=1)
    assert queues.estimate_sampled_step_s(two, rates=rates, num_cores=8) == pytest.approx(20e-3 * 1.05)


def test_threads_and_workers_never_exceed_the_cores():
    rates = rates_of(compute_s={1: 10e-3, 2: 6e-3, 8: 3e-3})
    candidates = queues.list_queue_candidates(rates, num_cores=2.5)
    assert {candidate.num_threads for candidate in candidates} == {1, 2}
    assert max(candidate.num_sampling_workers for candidate in candidates) == 2
    assert {candidate.num_threads for candidate in queues.list_queue_candidates(rates, num_cores=0.5)} == {1}


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


def test_memory_adds_up_by_hand():
    shape = sampled_shape(num_nodes=1000, num_edges=2000, graph_bytes=5_000_000)
    profile = sampled_profile(shape, num_ranks=2)
    rates = queues.read_rates(profile, batch_size=256)
    estimate = queues.estimate_sampled_memory_bytes(SERIAL, shape=shape, rates=rates, queues=(), profile=profile)
    state = 6 * 400_000
    graph = 5_000_000 + 4 * 1000
    held = MIB
    step = MIB // 10 + MIB + 4 * MIB
    assert estimate == pytest.approx(1.1 * (10 * MIB + state + graph + held + step) + 32 * MIB, abs=2)


def test_evaluation_of_a_large_graph_can_be_the_highest_point():
    shape = sampled_shape(num_nodes=100_000, num_edges=1_000_000, num_features=100, hidden_size=128)
    profile = sampled_profile(shape, num_ranks=2)
    rates = queues.read_rates(profile, batch_size=256)
    estimate = queues.estimate_sampled_memory_bytes(SERIAL, shape=shape, rates=rates, queues=(), profile=profile)
    state, graph, held = 6 * 400_000, 5_000_000 + 400_000, MIB
    evaluation = 2 * 51_200_000 + 2 * 51_200_000 + 500_000 * 12
    assert estimate == pytest.approx(1.1 * (10 * MIB + state + graph + held + evaluation) + 32 * MIB, abs=2)


def test_queues_and_workers_take_memory():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=2)
    rates = queues.read_rates(profile, batch_size=256)
    bounds = queues.size_queues(OVERLAPPED, rates=rates, step_time_s=0.01, budget_bytes=100 * MIB)
    serial, overlapped = (
        queues.estimate_sampled_memory_bytes(candidate, shape=shape, rates=rates, queues=held, profile=profile)
        for candidate, held in ((SERIAL, ()), (OVERLAPPED, bounds))
    )
    assert overlapped - serial == pytest.approx(1.1 * sum(queue.max_bytes for queue in bounds), abs=2)


@pytest.mark.parametrize("missing", ["sample", "prepare", "compute", "exchange"])
def test_a_profile_without_a_stage_is_refused_by_name(missing):
    profile = sampled_profile(sampled_shape(), num_ranks=2)
    holed = profile.model_copy(update={"stages": tuple(s for s in profile.stages if s.stage != missing)})
    with pytest.raises(ProfileMismatchError, match=missing):
        queues.read_rates(holed, batch_size=256)


def test_other_batch_sizes_are_not_mixed_in():
    with pytest.raises(ProfileMismatchError, match="at 99 seeds"):
        queues.read_rates(sampled_profile(sampled_shape(), num_ranks=2), batch_size=99)
