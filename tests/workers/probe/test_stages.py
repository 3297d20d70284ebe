"""The stages of the sampled pipeline are timed as training runs them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from planner.cost.memory import EVALUATION_CHUNK_BYTES, layerwise_evaluation_bytes
from planner.profiles import ProbeRequest
from tests.kit.objectives import classify
from tests.planner.made_up import cluster
from tests.workers.probe.test_describe import dataset_of, sampled_spec
from workers.comm.axis import Axis
from workers.data.features import DenseFeatures
from workers.data.graph import TRAIN, Graph
from workers.data.links import hide_links
from workers.model_specs.custom import CustomGNNSpec
from workers.model_specs.sampled import TypeNames
from workers.models.registry import build_model
from workers.mqgnn import evaluation
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.probe import stages
from workers.probe.describe import describe_job, profile_key
from workers.probe.memory import measure_peak_bytes
from workers.probe.ranks import Ranks
from workers.probe.stages import measure_stages
from workers.probe.toy_graph import ring_graph
from workers.spec import SPEC_OF_MODEL, LinkSpec, SampledGNNSpec, TrainingSpec

CPU = torch.device("cpu")
ALONE = Ranks(0, world_size=1, group=None, device=CPU)
SPEC = sampled_spec(hidden_size=8, fanouts=(2, 2))


@pytest.fixture(scope="module")
def samples():
    dataset = dataset_of(ring_graph())
    key = profile_key(describe_job(SPEC, dataset), cluster=cluster(), num_ranks=1)
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


def test_the_largest_of_eight_mini_batches_is_told(monkeypatch):
    dataset = dataset_of(ring_graph())
    key = profile_key(describe_job(SPEC, dataset), cluster=cluster(), num_ranks=1)
    request = ProbeRequest(key=key, stage_batch_sizes=(32,), budget_s=0.01)
    weighed = []  # sample, prepare, compute, exchange, update, and again; each seems to take one byte more
    monkeypatch.setattr(stages, "measure_peak_bytes", lambda work, *, device: weighed.append(work()) or len(weighed))
    found = measure_stages(request, spec=SPEC, dataset=dataset, ranks=ALONE)
    assert [sample.peak_bytes for sample in found if sample.stage == "sample"] == [7 * 5 + 1]


def star_graph(num_nodes: int) -> Graph:
    """Everybody points to everybody's neighbour on a ring, and all but node 0 to node 0: a hub of all nodes."""
    nodes = np.arange(1, num_nodes)
    return Graph(
        indptr=np.concatenate(([0], num_nodes - 1 + np.arange(num_nodes))),
        indices=np.concatenate((nodes, np.roll(nodes, 1))).astype(np.int32),
        features=DenseFeatures(np.ones((num_nodes, 16), dtype=np.float32)),
        y=np.arange(num_nodes) % 2,
        split=np.full(num_nodes, TRAIN, dtype=np.int8),
    )


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
@pytest.mark.parametrize(("hidden_size", "num_layers"), [(256, 3), (512, 2)])
def test_the_planner_knows_what_an_evaluation_holds(hidden_size, num_layers, name):
    graph = star_graph(40_000)
    spec = SampledGNNSpec(name=name, hidden_size=hidden_size, fanouts=(5,) * num_layers)
    model = build_model(spec, num_features=16, num_classes=2)
    evaluator = Evaluator(graph, axis=Axis(), device=CPU, dtype=torch.float32)
    Evaluator(star_graph(8), axis=Axis(), device=CPU, dtype=torch.float32).scores(model, objective=classify(2))
    peak = measure_peak_bytes(lambda: evaluator.scores(model, objective=classify(2)), device=CPU)
    promised = layerwise_evaluation_bytes(
        model=name,
        num_nodes=graph.num_nodes,
        largest_degree=graph.num_nodes - 1,
        widths=(16, *[hidden_size] * (num_layers - 1), 2),
        element_bytes=4,
    )
    assert 0.3 * promised < peak <= promised


@pytest.mark.parametrize("name", ["graphsage", "gat", "gatv2", "gin"])
def test_the_planner_knows_what_an_evaluation_of_several_types_holds(name):
    def typed(num_nodes: int) -> Graph:
        graph = star_graph(num_nodes)
        return replace(graph, node_types=(np.arange(num_nodes) % 2).astype(np.uint8))

    types = ("even", "odd")
    relations = tuple((source, "to", target) for source in types for target in types)
    spec = SPEC_OF_MODEL[name](
        name=name, hidden_size=256, fanouts=(5, 5), hetero=True, types=TypeNames(nodes=types, relations=relations)
    )
    model, graphs = build_model(spec, num_features=16, num_classes=2), [typed(8), typed(20_000)]
    graphs = [graph_to_sample(graph, spec) for graph in graphs]
    small, large = (
        Evaluator(graph, axis=Axis(), device=CPU, dtype=torch.float32, has_relations=True) for graph in graphs
    )
    small.scores(model, objective=classify(2))
    peak = measure_peak_bytes(lambda: large.scores(model, objective=classify(2)), device=CPU)
    promised = layerwise_evaluation_bytes(
        model=f"{name} hetero",
        num_nodes=20_000,
        largest_degree=20_000 - 1,
        widths=(16, 256, 2),
        element_bytes=4,
        num_heads=getattr(spec, "num_heads", 1),
    )
    assert 0.1 * promised < peak <= promised  # an edge is met under one relation at a time


def test_what_an_evaluation_with_a_module_of_ones_own_holds_is_weighed():
    own = CustomGNNSpec(
        module="tests.workers.mqgnn.own.modules:own_module",
        arguments={"convolution": "GCNConv", "hidden": 256},
        fanouts=(5, 5),
    )
    spec, dataset = SPEC.model_copy(update={"model": own}), dataset_of(star_graph(20_000))
    dataset = replace(dataset, num_features=16)
    key = profile_key(describe_job(spec, dataset), cluster=cluster(), num_ranks=1)
    request = ProbeRequest(key=key, stage_batch_sizes=(32, 8), threads=(1,), budget_s=0.01)
    found = measure_stages(request, spec=spec, dataset=dataset, ranks=ALONE)
    (weighed,) = [sample for sample in found if sample.stage == "evaluate"]
    rows = 20_000 * 256 * 4
    assert (
        2 * rows < weighed.peak_bytes < 12 * rows
    )  # those of both convolutions, and a chunk with the hub's neighbours
    assert weighed.batch_size == 32


def test_the_planner_knows_the_chunk_of_evaluation():
    assert evaluation.CHUNK_BYTES == EVALUATION_CHUNK_BYTES


def test_links_are_timed_with_the_nodes_that_they_bring(samples):
    dataset = hide_links(dataset_of(ring_graph()), LinkSpec(num_val=0.1, num_test=0.1, embedding_size=4))
    spec = SPEC.model_copy(update={"training": TrainingSpec(metric="hits_at_10")})
    shape = describe_job(spec, dataset)
    assert (shape.num_train, shape.num_classes) == (52, 4)
    assert shape.sampler == "uniform links:1"
    key = profile_key(shape, cluster=cluster(), num_ranks=1)
    request = ProbeRequest(key=key, stage_batch_sizes=(8,), threads=(1,), budget_s=0.1)
    stages.rehearse_stages(spec, ranks=ALONE)
    found = measure_stages(request, spec=spec, dataset=dataset, ranks=ALONE)
    assert {sample.stage for sample in found} == {"sample", "prepare", "compute"}
    nodes = {sample.stage: sample.num_bytes for sample in samples if sample.batch_size == 8}
    assert next(sample.num_bytes for sample in found if sample.stage == "prepare") > nodes["prepare"]
