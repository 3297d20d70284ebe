"""A whole probe on two ranks: they agree on one profile, and the planner makes a plan of it."""

import time

import pytest
import torch
import torch.distributed as dist

from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.planner import make_plan, probes_for
from planner.profiles import Profile
from tests.kit.gloo_pool import GlooPool
from tests.planner.made_up import cluster
from tests.workers.probe.test_describe import dataset_of, sampled_spec, transformer_spec
from workers.probe import measure
from workers.probe.describe import describe_job, profile_key
from workers.probe.measure import run_probe
from workers.probe.ranks import Meeting, Ranks, open_group
from workers.probe.toy_graph import ring_graph

SPECS = {
    "megagraph": transformer_spec(hidden_size=16, num_heads=2),
    "mqgnn": sampled_spec(hidden_size=8, fanouts=(2, 2)),
}


@pytest.fixture(scope="module")
def pool():
    with GlooPool(2) as ranks:
        yield ranks


@pytest.fixture
def meeting():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield Meeting(host="127.0.0.1", port=store.port)
    del store


def probe(rank: int, world_size: int, kind: str, meeting: Meeting) -> Profile:
    dataset = dataset_of(ring_graph())
    shape = describe_job(SPECS[kind], dataset)
    key = profile_key(shape, cluster=cluster(), num_ranks=world_size)
    request = probes_for(shape, key=key, cluster=cluster()).model_copy(update={"budget_s": 0.5})
    group = join(rank, world_size, meeting)
    return run_probe(request, spec=SPECS[kind], dataset=dataset, rank=rank, world_size=world_size, group=group)


def join(rank: int, world_size: int, meeting: Meeting) -> dist.ProcessGroup | None:
    return open_group(meeting, rank=rank, world_size=world_size, address="127.0.0.1", device_kind="cpu")


@pytest.mark.parametrize(("kind", "plan_type"), [("megagraph", MegaGraphPlan), ("mqgnn", MQGNNPlan)])
def test_two_ranks_agree_on_a_profile_that_can_be_planned_with(pool, meeting, kind, plan_type):
    first, second = pool.run(probe, kind, meeting, world_size=2)
    assert (first.units, first.links, first.stages) == (second.units, second.links, second.stages)
    assert first.parameter_bytes > 0
    assert Profile.model_validate_json(first.model_dump_json()) == first
    plan = make_plan(first.key.shape, cluster=cluster(), profile=first, num_ranks=2)
    assert isinstance(plan, plan_type)
    assert plan.predicted.step_time_s > 0


def test_both_operations_are_timed_at_every_payload(pool, meeting):
    profile = pool.run(probe, "megagraph", meeting, world_size=2)[0]
    payloads = {(link.operation, link.num_bytes) for link in profile.links}
    assert {("all_reduce", 4096), ("p2p", 4096), ("all_reduce", 2**20), ("p2p", 2**20)} <= payloads
    assert all(link.seconds > 0 and link.world_size == 2 for link in profile.links)
    assert ("all_reduce", profile.parameter_bytes) in payloads  # what a step really sums


def test_the_exchange_of_gradients_is_timed_between_replicas(pool, meeting):
    profile = pool.run(probe, "mqgnn", meeting, world_size=2)[0]
    assert {stage.stage for stage in profile.stages} == {"sample", "prepare", "compute", "exchange"}


def test_one_rank_needs_no_group():
    profile = probe(0, 1, "megagraph", Meeting(host="nowhere", port=1))
    assert profile.links == ()
    assert {unit.unit for unit in profile.units} == {"features", "degree", "distance", "block", "head", "optimizer"}


def test_what_the_first_model_brings_along_is_part_of_the_base(monkeypatch):
    order = []
    build = measure.build_model
    monkeypatch.setattr(measure, "measure_peak_bytes", lambda work, *, device: order.append("base") or len(order))
    monkeypatch.setattr(measure, "build_model", lambda *args, **sizes: order.append("model") or build(*args, **sizes))
    probe(0, 1, "megagraph", Meeting(host="nowhere", port=1))
    assert order == ["base", "model"]


def test_threads_are_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        probe(0, 1, "megagraph", Meeting(host="nowhere", port=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def agree(rank: int, world_size: int, meeting: Meeting) -> tuple[list[float], list[float], float]:
    ranks = Ranks(rank, world_size=world_size, group=join(rank, world_size, meeting), device=torch.device("cpu"))
    seconds = ranks.time_s(lambda: spin(0.02 * rank), repeats=1)
    return ranks.largest([rank, -rank]), ranks.mean([rank, 4.0]), seconds


def test_the_slowest_rank_decides(pool, meeting):
    for largest, mean, seconds in pool.run(agree, meeting, world_size=2):
        assert largest == [1, 0]
        assert mean == [0.5, 4.0]
        assert seconds >= 0.02
