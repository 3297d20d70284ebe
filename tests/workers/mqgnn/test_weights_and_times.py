"""Weights and times of own data in jobs: what is drawn, what is evaluated, and what is refused before ranks start."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from service.validation import find_faults
from tests.kit.objectives import classify
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from tests.workers.mqgnn.runs import CPU, Settings, train_by_hand
from workers.comm.axis import Axis
from workers.data.datasets import load_dataset
from workers.data.edges import targets_of
from workers.data.graph import NO_TIME, Graph
from workers.data.paths import DataPaths
from workers.errors import ModelInvalidError
from workers.model_specs.sampled import SampledAttentionSpec, SampledGNNSpec
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.sampling.sampled_graph import copied_bytes, graph_to_sample
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.temporal_evaluation import TemporalEvaluator, build_evaluator
from workers.mqgnn.train import train
from workers.probe.describe import describe_job
from workers.spec import DatasetSpec, TrainingSpec, TrainSpec

ALONE = Axis()


def in_time(num_nodes: int = 80, *, on_edges: bool = True, num_times: int = 7) -> Graph:
    """A clustered graph with a time of every node, and of every edge: that of its later end, or later."""
    graph, rng = clustered_graph(num_nodes, degree=8), np.random.default_rng(3)
    nodes = rng.integers(num_times, size=num_nodes)
    later = np.maximum(nodes[graph.indices], nodes[targets_of(graph.indptr)]) + rng.integers(2, size=graph.num_edges)
    return replace(graph, node_times=nodes, edge_times=later if on_edges else None)


def with_weights(graph: Graph) -> Graph:
    rng = np.random.default_rng(5)
    weights = rng.random(graph.num_edges) * (rng.random(graph.num_edges) < 0.7)
    return replace(graph, edge_weights=weights.astype(np.float32))


def model_of(name: str, **options):
    kind = SampledAttentionSpec if name.startswith("gat") else SampledGNNSpec
    return kind(name=name, hidden_size=8, fanouts=(3, 2), **options)


@pytest.mark.parametrize("options", [{"sampler": "weighted"}, {"temporal": True}, {"disjoint": True}])
def test_g9_runs_with_weights_and_times_are_equal_bit_for_bit_whatever_runs_beside_what(options):
    """Case G9: the losses of a run do not depend on threads and workers."""
    graph = with_weights(in_time(150))
    serial = train_by_hand(graph, Settings(epochs=1, **options))[1]
    assert train_by_hand(graph, Settings(epochs=1, pipelined=True, num_sampling_workers=2, **options))[1] == serial
    assert serial != train_by_hand(graph, Settings(epochs=1))[1]


@pytest.mark.parametrize("options", [{"temporal": True}, {"disjoint": True}])
def test_features_read_in_place_give_what_gathered_ones_do(options):
    settings = Settings(epochs=1, dtype=torch.float32, **options)
    gathered = train_by_hand(in_time(150), settings)[1]
    np.testing.assert_allclose(train_by_hand(in_time(150), replace(settings, in_place=True))[1], gathered, rtol=1e-5)


@pytest.mark.parametrize("on_edges", [True, False])
@pytest.mark.parametrize("sampler", ["uniform", "weighted", "labor"])
def test_g34_no_edge_of_a_mini_batch_is_later_than_its_seed(sampler, on_edges):
    """Case G34: temporal samplers of others returned later edges. Here in the stages of a job, times in no order."""
    model = model_of("graphsage", sampler=sampler, temporal=True)
    graph = graph_to_sample(with_weights(in_time(on_edges=on_edges)), model)
    order = SeedOrder(np.arange(80), 16, seed=0)
    sample = build_stages(graph, order=order, fanouts=(4, 3), rank=0, device=CPU, sampler=sampler, temporal=True)[
        0
    ].make_worker()
    known: dict[tuple[int, int], int] = {}
    for source, target, time in zip(graph.indices, targets_of(graph.indptr), graph.edge_times, strict=True):
        known[int(source), int(target)] = int(time)
    seen = 0
    for number in range(order.steps_per_epoch):
        batch = sample(BatchTask(epoch=1, batch=number))
        found = batch.subgraph
        targets = targets_of(found.indptr)
        ends = zip(found.node_ids[found.indices].tolist(), found.node_ids[targets].tolist(), strict=True)
        limits = graph.node_times[batch.seeds][found.trees[targets]]
        assert all(known[edge] <= limit for edge, limit in zip(ends, limits, strict=True))
        seen += len(limits)
    assert seen > 100


def rows_at_their_times(model: torch.nn.Module, graph: Graph) -> torch.Tensor:
    """What PyG's model says of each node on the edges that there are at its time."""
    x, targets, rows = torch.from_numpy(graph.features.matrix).double(), targets_of(graph.indptr), []
    for node in range(graph.num_nodes):
        time = graph.node_times[node]
        there = np.ones(graph.num_edges, dtype=bool) if time == NO_TIME else graph.edge_times <= time
        edges = torch.from_numpy(np.stack((graph.indices[there].astype(np.int64), targets[there])))
        rows.append(model(x, edges)[node])
    return torch.stack(rows)


@pytest.mark.parametrize("on_edges", [True, False])
@pytest.mark.parametrize("name", ["graphsage", "gat", "gatv2"])
@torch.no_grad()
def test_g34_each_node_is_evaluated_from_what_there_is_at_its_own_time(name, on_edges):
    """Case G34, at evaluation: neither a test node nor a neighbour of it hears from later edges."""
    spec = model_of(name, temporal=True)
    graph = in_time(60, on_edges=on_edges)
    graph.node_times[:3] = NO_TIME
    graph = graph_to_sample(graph, spec)
    torch.manual_seed(0)
    model = build_sampled_gnn(spec, num_features=8, num_classes=3).double().eval()
    expected = rows_at_their_times(model, graph)
    met = []
    for index in range(3):  # three replicas share the nodes
        axis = Axis((0, 1, 2), index, None)
        evaluator = TemporalEvaluator(graph, num_hops=2, axis=axis, device=CPU, dtype=torch.float64)
        for nodes, outputs in evaluator.outputs(model):
            torch.testing.assert_close(outputs, expected[nodes], rtol=0, atol=1e-12)
            met += nodes.tolist()
    assert sorted(met) == [*range(60)]
    whole = model(torch.from_numpy(graph.features.matrix).double(), torch.from_numpy(edges_of(graph)))
    assert (whole - expected).abs().max() > 1e-3  # it does make a difference


def edges_of(graph: Graph) -> np.ndarray:
    return np.stack((graph.indices.astype(np.int64), targets_of(graph.indptr)))


@torch.no_grad()
def test_at_the_end_of_time_all_is_as_without_times():
    spec = model_of("graphsage")
    graph = replace(in_time(), node_times=np.full(80, 99))
    model = build_sampled_gnn(spec, num_features=8, num_classes=3).double()
    options = {"axis": ALONE, "device": CPU, "dtype": torch.float64}
    scores = [
        build_evaluator(spec.model_copy(update={"temporal": temporal}), graph, **options).scores(
            model, objective=classify(3)
        )
        for temporal in (False, True)
    ]
    assert scores[0] == scores[1]
    assert "val_accuracy" in scores[0]


def test_g21_an_edge_of_weight_zero_is_none_for_a_weighted_run_in_training_and_evaluation():
    """Case G21: an edge of weight 0 is never drawn; so evaluation takes all neighbours but those."""
    graph = graph_of_edges([(0, 1), (2, 1), (3, 1), (1, 2)], num_nodes=4)
    graph = replace(graph, edge_weights=np.array([0.5, 0, 2, 1], dtype=np.float32))
    found = graph_to_sample(graph, model_of("graphsage", sampler="weighted"))
    assert [*zip(*edges_of(found).tolist(), strict=True)] == [(0, 1), (3, 1), (1, 2)]
    assert found.edge_weights.tolist() == [0.5, 2, 1]
    assert graph_to_sample(graph, model_of("graphsage")) is graph


def test_memory_counts_what_a_run_copies():
    graph = with_weights(in_time())
    ends = graph.indptr.nbytes + graph.indices.nbytes
    columns = graph.edge_weights.nbytes + graph.edge_times.nbytes
    assert copied_bytes(graph, model_of("graphsage")) == 0
    assert copied_bytes(graph, model_of("graphsage", direction="out")) == ends + columns
    assert copied_bytes(graph, model_of("graphsage", sampler="weighted")) == ends + columns
    assert copied_bytes(graph, model_of("graphsage", temporal=True)) == 2 * ends


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> DataPaths:
    """Own files whose labels follow neighbours: heavy edges lead to the own class, later ones to the other."""
    folder = tmp_path_factory.mktemp("papers")
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=200)
    rows = [f"{n},{label[n]},{2000 + n % 5},{rng.normal():.4f},{label[n] + rng.normal():.4f}" for n in range(200)]
    (folder / "nodes.csv").write_text("id,label,time,noise,word\n" + "\n".join(rows) + "\n")
    edges = []
    for node in range(200):
        for _ in range(4):
            other = int(rng.choice(np.flatnonzero(label == label[node])))
            edges.append(f"{other},{node},1,{2000 + int(rng.integers(3))}")
            other = int(rng.choice(np.flatnonzero(label != label[node])))
            edges.append(f"{other},{node},{0 if rng.random() < 0.9 else 0.2},2009")
    (folder / "edges.csv").write_text("source,target,weight,time\n" + "\n".join(edges) + "\n")
    return DataPaths(root=folder, cache=folder / "cache")


def run_job(papers: DataPaths, job_dir: Path, **options) -> dict[str, float]:
    model = SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 3), **options)
    training = TrainingSpec(epochs=8, batch_size=32, eval_every_epochs=8, checkpoint_every_epochs=8)
    dataset = DatasetSpec(path=str(papers.root), directed=True)
    spec = TrainSpec(kind="mqgnn", dataset=dataset, model=model, training=training)
    return train(sampled_run(spec, job_dir=job_dir, data=papers, report_every_steps=100))


def test_jobs_learn_from_weights_and_times_what_others_cannot(papers, tmp_path):
    blind = run_job(papers, tmp_path / "blind")["test_accuracy"]
    by_weight = run_job(papers, tmp_path / "weighted", sampler="weighted")["test_accuracy"]
    in_time = run_job(papers, tmp_path / "temporal", temporal=True)["test_accuracy"]
    assert min(by_weight, in_time) > max(0.85, blind)


@pytest.mark.parametrize(
    ("options", "pointer", "words"),
    [
        ({"sampler": "weighted"}, "/model/sampler", "add a column weight to the table of edges"),
        ({"temporal": True}, "/model/temporal", "add a column time to the table of nodes"),
    ],
)
def test_what_the_data_has_not_is_refused_before_ranks_start_and_where_it_was_asked(options, pointer, words, tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label,x\n0,0,1\n1,1,2\n2,0,3\n3,1,4\n")
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n2,3\n")
    spec = TrainSpec(kind="mqgnn", dataset=DatasetSpec(path=str(tmp_path)), model=model_of("graphsage", **options))
    dataset = load_dataset(spec.dataset, paths=DataPaths(root=None, cache=tmp_path / "cache"))
    with pytest.raises(ModelInvalidError, match=words) as caught:
        describe_job(spec, dataset)
    assert caught.value.details["pointer"] == pointer
    document = {
        "name": "named",
        "kind": "mqgnn",
        "dataset": {"name": "karate"},
        "model": {"name": "graphsage", **options},
    }
    (fault,) = find_faults(document)
    assert fault.pointer == pointer
    assert "which named data sets do not have" in fault.detail


def test_a_node_of_the_split_without_a_time_is_named(papers):
    spec = TrainSpec(
        kind="mqgnn",
        dataset=DatasetSpec(path=str(papers.root), directed=True),
        model=model_of("graphsage", temporal=True),
    )
    dataset = load_dataset(spec.dataset, paths=papers)
    assert describe_job(spec, dataset).sampler == "uniform temporal"
    dataset.graphs[0].node_times[7] = NO_TIME
    with pytest.raises(ModelInvalidError, match=r"node 7 of .* has no time"):
        describe_job(spec, dataset)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gcn", {"temporal": True}, "may know degrees of the whole graph"),
        ("graphsage", {"temporal": True, "sampler": "ladies"}, "no seed has a subgraph of its own"),
        ("graphsage", {"disjoint": True, "sampler": "fastgcn"}, "no seed has a subgraph of its own"),
        ("graphsage", {"replace": True, "sampler": "labor"}, "draws without replacement"),
    ],
)
def test_ways_of_sampling_that_do_not_go_together_are_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        model_of(name, **options)


def test_weights_may_be_drawn_with_replacement():
    assert model_of("gat", sampler="weighted", replace=True).sampling_words == "weighted replace"
