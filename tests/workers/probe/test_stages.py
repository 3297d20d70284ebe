"""The stages of the sampled pipeline are timed as training runs them."""

import pytest
import torch

from planner.cost.memory import EVALUATION_CHUNK_BYTES
from planner.profiles import ProbeRequest
from tests.workers.probe.test_describe import dataset_of, sampled_spec
from workers.mqgnn import evaluation
from workers.probe.describe import describe_job, profile_key
from workers.probe.ranks import Ranks
from workers.probe.stages import measure_stages
from workers.probe.toy_graph import ring_graph

ALONE = Ranks(0, world_size=1, group=None, device=torch.device("cpu"))
SPEC = sampled_spec(hidden_size=8, fanouts=(2, 2))


@pytest.fixture(scope="module")
def samples():
    dataset = dataset_of(ring_graph())
    key = profile_key(describe_job(SPEC, dataset), num_ranks=1, device_name="cpu")
    request = ProbeRequest(key=key, stage_batch_sizes=(32, 8), threads=(1, 2), budget_s=0.1)
    before = torch.get_num_threads()
    found = measure_stages(request, spec=SPEC, dataset=dataset, ranks=ALONE)
    torch.set_num_threads(before)
    return found


def test_compute_is_measured_on_every_thread_count_the_others_on_one(samples):
    assert sorted((s.stage, s.num_threads, s.batch_size) for s in samples) == sorted(
        (stage, threads, size)
        for size in (32, 8)
        for stage, threads in (("sample", 1), ("prepare", 1), ("compute", 1), ("compute", 2))
    )


def test_one_replica_exchanges_nothing(samples):
    assert all(sample.stage != "exchange" for sample in samples)


def test_batches_weigh_what_their_seeds_bring(samples):
    weights = {sample.batch_size: sample.num_bytes for sample in samples if sample.stage == "prepare"}
    # at least the features of the seeds, at most of all 64 nodes with indices beside them
    assert 32 * 8 * 4 <= weights[32] <= 64 * 8 * 4 + 4096
    assert weights[8] < weights[32]


def test_times_are_positive_and_ordered(samples):
    assert all(sample.seconds > 0 for sample in samples)
    assert all(sample.p95_s > 0 for sample in samples)


def test_the_planner_knows_the_chunk_of_evaluation():
    assert evaluation._CHUNK_BYTES == EVALUATION_CHUNK_BYTES
