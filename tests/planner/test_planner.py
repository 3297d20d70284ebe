"""The planner as a whole: what it asks to measure, what it decides, what it refuses."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cluster import ClusterSpec
from planner.errors import NoPlanFitsError, ProfileMismatchError
from planner.plan import describe_partition, parse_plan
from planner.planner import make_plan, probes_for
from tests.planner.made_up import (
    MIB,
    cluster,
    cluster_with_room,
    key_of,
    sampled_profile,
    sampled_shape,
    transformer_profile,
    transformer_shape,
)

GRAPHS = {"graph_sizes": (200, 300, 400) * 10, "graphs_per_step": 8}


def plan_graphs(*, where=None, num_ranks=4, **profile):
    shape = transformer_shape(**GRAPHS)
    measured = transformer_profile(shape, num_ranks=num_ranks, **profile)
    return make_plan(shape, cluster=where or cluster(cores=4), profile=measured, num_ranks=num_ranks)


def test_one_graph_is_planned_on_a_ring_and_the_plan_says_why():
    shape = transformer_shape()
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=2)
    (stage,) = plan.stages
    assert (stage.dp_degree, stage.cp_degree, stage.exchange) == (1, 2, "ring")
    assert any("There is one graph" in reason for reason in plan.reasons)
    assert plan.recompute == ()


def test_a_plan_names_the_cut_that_it_was_made_for():
    shape = transformer_shape(graph_sizes=(1000, 400), other_graph_sizes=(300,), graphs_per_step=2)
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=2)
    cp_degree = plan.stages[0].cp_degree
    assert plan.partition == describe_partition((300, 1000, 400), cp_degree=cp_degree)
    assert plan.partition.fingerprint
    assert plan.partition != describe_partition((300, 1000, 401), cp_degree=cp_degree)
    assert plan.partition != describe_partition((300, 1000, 400), cp_degree=cp_degree + 1)


def test_what_a_rank_asks_of_its_node_decides_its_threads():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=2, threads={1: 1.0, 4: 3.0})
    wide = profile.model_copy(update={"key": profile.key.model_copy(update={"cpus_per_rank": 8.0})})
    where = cluster(cores=4, num_nodes=2)  # 8 CPUs each: two ranks of one CPU share a node, two of eight do not
    assert make_plan(shape, cluster=where, profile=profile, num_ranks=2).num_threads == 1
    assert make_plan(shape, cluster=where, profile=wide, num_ranks=2).num_threads == 4
    assert probes_for(shape, key=wide.key, cluster=where).threads == (1, 4)


def test_the_predicted_step_is_the_sum_of_its_terms():
    shape = transformer_shape()
    plan = make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=2)
    assert plan.predicted.step_time_s == pytest.approx(sum(plan.predicted.terms_s.values()))
    assert len(plan.predicted.memory_bytes) == 2


def test_slow_links_favour_replicas_over_a_ring():
    assert plan_graphs(bytes_per_s=1e6, alpha_s=0.1).stages[0].dp_degree == 4


def test_activations_are_recomputed_only_when_memory_forces_it():
    shape = transformer_shape(num_layers=8)
    profile = transformer_profile(shape, num_ranks=2, parameter_bytes=40_000)
    roomy = make_plan(shape, cluster=cluster(), profile=profile, num_ranks=2)
    assert roomy.recompute == ()
    (other,) = roomy.runners_up
    assert "recomputed" in other.choice
    assert other.memory_bytes < max(roomy.predicted.memory_bytes)
    where = cluster_with_room(other.memory_bytes, num_ranks=2)
    forced = make_plan(shape, cluster=where, profile=profile, num_ranks=2)
    assert forced.recompute == tuple(f"block.{index}" for index in range(8))
    assert max(forced.predicted.memory_bytes) == other.memory_bytes
    assert forced.predicted.step_time_s == other.step_time_s > roomy.predicted.step_time_s


def test_a_job_that_fits_nowhere_hears_the_nearest_miss():
    with pytest.raises(NoPlanFitsError, match=r"The nearest \(dp \d x cp \d.*bytes too many") as caught:
        plan_graphs(where=cluster_with_room(20 * MIB, num_ranks=4))
    assert caught.value.details["missing_bytes"] > 0
    just_enough = 20 * MIB + caught.value.details["missing_bytes"]
    assert plan_graphs(where=cluster_with_room(just_enough, num_ranks=4))


@pytest.mark.parametrize(("cores", "threads"), [(2, 1), (8, 2), (1, 1)])
def test_threads_come_from_the_cores_of_a_rank(cores, threads):
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=4, threads={1: 1.0, 2: 1.7})
    assert make_plan(shape, cluster=cluster(cores=cores), profile=profile, num_ranks=4).num_threads == threads


def test_one_thread_wins_where_the_probe_saw_it_faster():
    shape = transformer_shape()
    profile = transformer_profile(shape, num_ranks=4, threads={1: 1.0, 2: 0.5})
    assert make_plan(shape, cluster=cluster(cores=8), profile=profile, num_ranks=4).num_threads == 1


@settings(max_examples=30)
@given(factor=st.floats(1.0, 100.0), base=st.floats(1e6, 1e9))
def test_more_bandwidth_never_lowers_throughput(factor, base):
    slow = plan_graphs(bytes_per_s=base).predicted.step_time_s
    assert plan_graphs(bytes_per_s=base * factor).predicted.step_time_s <= slow * (1 + 1e-6)


@settings(max_examples=30)
@given(room=st.integers(40 * MIB, 80 * MIB), more=st.integers(0, 100 * MIB))
def test_more_memory_never_lowers_throughput(room, more):
    try:
        tight = plan_graphs(where=cluster_with_room(room, num_ranks=4)).predicted.step_time_s
    except NoPlanFitsError:
        return
    assert plan_graphs(where=cluster_with_room(room + more, num_ranks=4)).predicted.step_time_s <= tight


@given(nodes=st.integers(64, 1600), ranks=st.sampled_from([1, 2, 4]))
def test_more_ranks_never_take_more_memory_each(nodes, ranks):
    shape = transformer_shape(graph_sizes=(nodes,))

    def memory(num_ranks):
        profile = transformer_profile(shape, num_ranks=num_ranks)
        plan = make_plan(shape, cluster=cluster(cores=64), profile=profile, num_ranks=num_ranks)
        return max(plan.predicted.memory_bytes)

    # what a rank does not share: the gradient bucket and the buffers of the ring
    unshared = 1.1 * (400_000 + 8 * nodes * 64 * 4)
    assert memory(2 * ranks) <= memory(ranks) + unshared


@given(nodes=st.integers(64, 1600), more=st.integers(0, 1000))
def test_a_larger_graph_never_takes_less(nodes, more):
    def predicted(size):
        shape = transformer_shape(graph_sizes=(size,))
        profile = transformer_profile(shape, num_ranks=2)
        return make_plan(shape, cluster=cluster(), profile=profile, num_ranks=2).predicted

    small, large = predicted(nodes), predicted(nodes + more)
    assert small.step_time_s <= large.step_time_s * (1 + 1e-9)
    assert max(small.memory_bytes) <= max(large.memory_bytes)


def test_few_cores_run_the_sampled_stages_in_a_row():
    shape = sampled_shape()
    plan = make_plan(shape, cluster=cluster(cores=2), profile=sampled_profile(shape, num_ranks=2), num_ranks=2)
    assert not plan.pipelined
    assert plan.queues == ()
    assert plan.predicted.step_time_s == pytest.approx(17e-3)
    assert any("a rank has 1 core, and overlapping needs one for a sampling worker" in why for why in plan.reasons)


def test_many_cores_overlap_the_sampled_stages():
    shape = sampled_shape()
    plan = make_plan(shape, cluster=cluster(cores=16), profile=sampled_profile(shape, num_ranks=2), num_ranks=2)
    assert plan.pipelined
    assert [queue.name for queue in plan.queues] == ["sample", "prepare"]
    assert plan.predicted.step_time_s == pytest.approx(11e-3 * 1.05)
    assert (plan.batch_size, plan.fanouts) == (512, (10, 5))


def test_two_compute_threads_beat_overlap_where_compute_weighs():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=1, sample_s=1e-3, prepare_s=1e-3, compute_s={1: 40e-3, 2: 21e-3})
    plan = make_plan(shape, cluster=cluster(cores=2), profile=profile, num_ranks=1)
    assert (plan.pipelined, plan.num_threads) == (False, 2)


def test_slow_sampling_gets_more_workers():
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=1, sample_s=30e-3)
    plan = make_plan(shape, cluster=cluster(cores=16), profile=profile, num_ranks=1)
    assert (plan.pipelined, plan.num_sampling_workers) == (True, 3)


def test_main_memory_limits_a_job_on_gpus():
    shape = sampled_shape(graph_bytes=8 * 2**30)
    on_cpus = sampled_profile(shape, num_ranks=2)
    transfer = next(stage for stage in on_cpus.stages if stage.stage == "prepare").model_copy(
        update={"stage": "transfer"}
    )
    profile = on_cpus.model_copy(
        update={
            "key": on_cpus.key.model_copy(update={"gpus_per_rank": 1.0}),
            "stages": (*on_cpus.stages, transfer),
        }
    )

    def plan_on(memory_bytes: int):
        node = cluster(memory_bytes=memory_bytes).nodes[0]
        where = ClusterSpec(nodes=(node.model_copy(update={"num_gpus": 2, "gpu_memory_bytes": 2**30}),))
        return make_plan(shape, cluster=where, profile=profile, num_ranks=2)

    assert max(plan_on(64 * 2**30).predicted.memory_bytes) < 2**30
    with pytest.raises(NoPlanFitsError, match=r"bytes of main memory that a rank may take. The nearest \(stages"):
        plan_on(16 * 2**30)


@pytest.mark.parametrize(("step_time_s", "every"), [(3.0, 1), (0.1, 10), (0.013, 77)])
def test_ranks_report_about_once_a_second(step_time_s, every):
    shape = sampled_shape()
    profile = sampled_profile(shape, num_ranks=1, sample_s=0.0, prepare_s=0.0, compute_s={1: step_time_s})
    assert make_plan(shape, cluster=cluster(), profile=profile, num_ranks=1).report_every_steps == every


@pytest.mark.parametrize("kind", ["megagraph", "mqgnn"])
def test_plans_survive_json(kind):
    if kind == "megagraph":
        plan = plan_graphs()
    else:
        shape = sampled_shape()
        plan = make_plan(shape, cluster=cluster(), profile=sampled_profile(shape, num_ranks=2), num_ranks=2)
    assert parse_plan(plan.model_dump_json()) == plan


def test_the_same_values_give_the_same_plan():
    assert plan_graphs() == plan_graphs()


def test_a_profile_of_another_shape_is_refused_with_the_difference():
    measured = transformer_profile(transformer_shape(hidden_size=64), num_ranks=2)
    with pytest.raises(ProfileMismatchError, match="hidden_size 128 against 64") as caught:
        make_plan(transformer_shape(hidden_size=128), cluster=cluster(), profile=measured, num_ranks=2)
    assert caught.value.details["differences"] == ["hidden_size"]


def test_a_profile_of_another_kind_is_refused():
    measured = sampled_profile(sampled_shape(), num_ranks=2)
    with pytest.raises(ProfileMismatchError, match="kind megagraph against mqgnn"):
        make_plan(transformer_shape(), cluster=cluster(), profile=measured, num_ranks=2)


def test_a_profile_of_fewer_ranks_is_refused():
    shape = transformer_shape()
    with pytest.raises(ProfileMismatchError, match="measured with 2 ranks, the job has 4"):
        make_plan(shape, cluster=cluster(), profile=transformer_profile(shape, num_ranks=2), num_ranks=4)


def test_probes_surround_what_the_fullest_rank_will_meet():
    shape = transformer_shape(graph_sizes=(1000,))
    request = probes_for(shape, key=key_of(shape, num_ranks=2), cluster=cluster())
    sizes = [(size.num_rows, size.num_columns, size.num_graphs) for size in request.unit_sizes]
    assert sizes == [(125, 250, 1), (250, 500, 1), (500, 1000, 1)]
    assert 2 * 500 * 64 * 4 in request.link_bytes
    assert request.threads == (1,)


def test_probes_of_large_graphs_stay_small_and_apart():
    shape = transformer_shape(graph_sizes=(100_000,))
    request = probes_for(shape, key=key_of(shape, num_ranks=2), cluster=cluster())
    pairs = [size.num_pairs for size in request.unit_sizes]
    assert pairs[2] == pytest.approx(2**23, rel=0.01)
    assert pairs[1] == pytest.approx(pairs[2] / 4, rel=0.01)
    assert pairs[0] == pytest.approx(pairs[1] / 4, rel=0.01)


def test_probes_of_many_graphs_hold_whole_micro_batches():
    shape = transformer_shape(graph_sizes=(40, 60) * 50, graphs_per_step=64)
    request = probes_for(shape, key=key_of(shape, num_ranks=2), cluster=cluster())
    sizes = {(size.num_rows, size.num_columns, size.num_graphs) for size in request.unit_sizes}
    # 51 nodes are the root mean square of 40 and 60
    assert {(51, 51, 32), (51, 51, 8), (26, 51, 64), (26, 51, 16), (60, 60, 1), (30, 60, 1)} <= sizes


def test_probes_try_all_cores_of_a_rank_and_one():
    shape = sampled_shape()
    request = probes_for(shape, key=key_of(shape, num_ranks=2), cluster=cluster(cores=8))
    assert request.threads == (1, 4)
    assert request.stage_batch_sizes == (256,)


def test_a_short_last_batch_is_probed_by_the_mean_step():
    # 600 seeds in batches of 512: steps of 512 and 88, 300 in the mean, 150 per replica
    shape = sampled_shape(num_train=600)
    request = probes_for(shape, key=key_of(shape, num_ranks=2), cluster=cluster())
    assert request.stage_batch_sizes == (256, 150)


def test_one_rank_needs_no_links():
    shape = transformer_shape()
    assert probes_for(shape, key=key_of(shape, num_ranks=1), cluster=cluster()).link_bytes == ()


def test_importing_the_planner_pulls_neither_torch_nor_ray():
    code = "import sys, planner.planner, planner.explain; print(sorted({'torch', 'ray', 'numba'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
