"""Graphs of several types: samples, one layer after the other, evaluation, and whole jobs, against PyG's own forms."""

import concurrent.futures
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv

from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import typed_dataset
from tests.workers.mqgnn.runs import CPU, Settings, train_by_hand
from tests.workers.mqgnn.sampling.same import assert_same
from workers.comm.axis import Axis
from workers.data.datasets import load_dataset
from workers.data.edges import targets_of
from workers.data.graph import NO_SPLIT, Graph
from workers.data.paths import DataPaths
from workers.errors import ModelInvalidError
from workers.model_specs.sampled import SampledGNNSpec
from workers.models.hetero import HeteroGNN
from workers.mqgnn.engine import forward_batch
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.predict import predict
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.sampling.hetero import HeteroSampler
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.mqgnn.sampling.typed import TypedSampler, cut_by_type
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.train import train
from workers.probe.describe import describe_job
from workers.spec import SPEC_OF_MODEL, DatasetSpec, TrainingSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.model_fit import resolve_model
from workers.training.run import RankRun

HETERO = SampledGNNSpec(name="graphsage", hidden_size=8, fanouts=(-1, -1), hetero=True)


DATASET = typed_dataset()
SPEC = resolve_model(HETERO, DATASET)
GRAPH = graph_to_sample(DATASET.graphs[0], SPEC)


NAMES = ("graphsage", "gat", "gatv2", "gin")


def model_of(name: str = "graphsage", *, num_layers: int = 2) -> HeteroGNN:
    torch.manual_seed(0)
    sizes = {"in_channels": 8, "hidden_channels": 8, "out_channels": 3, "num_layers": num_layers, "num_heads": 2}
    return HeteroGNN(name, dropout=0.5, types=SPEC.types, **sizes).double()


def whole(model: HeteroGNN, graph: Graph = GRAPH) -> torch.Tensor:
    """The outputs for all nodes, as a user of an exported model has them."""
    edges = torch.from_numpy(np.stack((graph.indices.astype(np.int64), targets_of(graph.indptr))))
    x = torch.from_numpy(graph.features.matrix).double()
    types, relations = (torch.from_numpy(array).long() for array in (graph.node_types, graph.edge_types))
    return model.eval()(x, edges, types, relations)


def test_relations_are_named_by_both_ends_and_the_edge():
    dataset = DATASET.graphs[0]
    assert len(SPEC.types.relations) == 18
    names = DATASET.node_type_names, DATASET.edge_type_names
    for edge in range(0, GRAPH.num_edges, 7):
        source, target = GRAPH.indices[edge], targets_of(GRAPH.indptr)[edge]
        ends = (
            names[0][dataset.node_types[source]],
            names[1][dataset.edge_types[edge]],
            names[0][dataset.node_types[target]],
        )
        assert SPEC.types.relations[GRAPH.edge_types[edge]] == ends


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_layer_is_pygs_hetero_conv_and_a_product_for_each_type(name):
    model, x = model_of(name, num_layers=1), torch.from_numpy(GRAPH.features.matrix).double()
    rows = {kind: torch.from_numpy(np.flatnonzero(GRAPH.node_types == n)) for n, kind in enumerate(SPEC.types.nodes)}
    place = torch.empty(GRAPH.num_nodes, dtype=torch.long)
    for of_type in rows.values():
        place[of_type] = torch.arange(len(of_type))
    edges, targets = {}, targets_of(GRAPH.indptr)
    for number, relation in enumerate(SPEC.types.relations):
        kept = GRAPH.edge_types == number
        edges[relation] = torch.stack((place[GRAPH.indices[kept].astype(np.int64)], place[targets[kept]]))
    theirs = HeteroConv(dict(zip(SPEC.types.relations, model.convs[0], strict=True)), aggr="sum")
    expected = theirs({kind: x[of_type] for kind, of_type in rows.items()}, edges)
    found = whole(model)
    for number, (kind, of_type) in enumerate(rows.items()):
        torch.testing.assert_close(found[of_type], expected[kind] + model.own[0][number](x[of_type]))


def batches(fanouts: tuple[int, ...], graph: Graph = GRAPH) -> Iterator:
    seeds = np.flatnonzero(graph.split != NO_SPLIT)
    order = SeedOrder(seeds, 7, seed=0)
    options = {"fanouts": fanouts, "rank": 0, "device": CPU, "dtype": torch.float64, "types": SPEC.types}
    sample, prepare = (stage.make_worker() for stage in build_stages(graph, order=order, **options))
    for batch in range(order.steps_per_epoch):
        yield prepare(sample(BatchTask(epoch=1, batch=batch)))


@pytest.mark.parametrize("name", NAMES)
def test_with_all_neighbours_a_mini_batch_is_computed_as_the_whole_graph_is_and_so_are_gradients(name):
    model = model_of(name)
    expected = whole(model)
    for batch in batches((-1, -1)):
        found = forward_batch(model, batch)
        weight = torch.linspace(1, 2, found.numel()).view_as(found).double()
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        ours, theirs = (
            torch.autograd.grad((outputs * weight).sum(), [*model.parameters()], **options)
            for outputs in (found, expected[batch.seeds])
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
        torch.testing.assert_close(forward_batch(model, batch), expected[batch.seeds], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_evaluation_is_that_of_the_whole_graph(name):
    model = model_of(name)
    expected, options = whole(model), {"device": CPU, "dtype": torch.float64, "has_relations": True}
    for nodes, outputs in Evaluator(GRAPH, axis=Axis(), chunk_bytes=2048, **options).outputs(model):
        torch.testing.assert_close(outputs, expected[nodes], rtol=0, atol=1e-12)


def test_samples_are_those_of_the_typed_sampler_in_other_numbers():
    cut = cut_by_type(GRAPH, types=SPEC.types)
    seeds = np.flatnonzero(GRAPH.node_types == 0)[:9]
    by_type = HeteroSampler(
        cut.edges,
        num_nodes={name: len(nodes) for name, nodes in cut.nodes.items()},
        fanouts=dict.fromkeys(cut.edges, (2, 1)),
    ).sample({"paper": np.arange(9)}, key=5)
    flat = TypedSampler(cut, fanouts=(2, 1)).sample(seeds, key=5)
    assert flat.node_ids[:9].tolist() == seeds.tolist()
    expected = set()
    for number, relation in enumerate(SPEC.types.relations):
        sources = cut.nodes[relation[0]][by_type.node_ids[relation[0]]][by_type.indices[relation]]
        rows = targets_of(by_type.indptr[relation])
        targets = cut.nodes[relation[2]][by_type.node_ids[relation[2]]][rows]
        expected |= {*zip(sources.tolist(), targets.tolist(), [number] * len(sources), strict=True)}
    targets = flat.node_ids[targets_of(flat.indptr)]
    triples = [*zip(flat.node_ids[flat.indices].tolist(), targets.tolist(), flat.relations.tolist(), strict=True)]
    assert set(triples) == expected
    assert len(triples) == sum(flat.num_edges_per_hop) == sum(map(sum, by_type.num_edges_per_hop.values()))
    assert len(flat.node_ids) == sum(flat.num_nodes_per_hop) == sum(map(sum, by_type.num_nodes_per_hop.values()))


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_g8_typed_subgraphs_are_the_same_for_any_number_of_workers(num_workers):
    """Case G8: hetero sampling of others differs between runs with one seed."""
    cut = cut_by_type(GRAPH, types=SPEC.types)
    seeds = np.flatnonzero(GRAPH.node_types == 0)[:24].reshape(8, 3)
    alone = TypedSampler(cut, fanouts=(3, 2))
    expected = [alone.sample(batch, key=key) for key, batch in enumerate(seeds)]

    def work(number: int) -> int:
        sampler = TypedSampler(cut, fanouts=(3, 2))
        for key in range(number, 8, num_workers):
            assert_same(sampler.sample(seeds[key], key=key), expected[key])
        return 1

    with concurrent.futures.ThreadPoolExecutor(num_workers) as threads:
        assert sum(threads.map(work, range(num_workers))) == num_workers


def test_sums_over_a_sample_count_as_those_over_all_neighbours_under_the_relation():
    degrees = np.zeros((GRAPH.num_nodes, len(SPEC.types.relations)))
    np.add.at(degrees, (targets_of(GRAPH.indptr), GRAPH.edge_types), 1)
    for batch in batches((2, 1)):
        assert batch.edge_weights is not None
        assert batch.edge_weights.max() > 1
        targets = batch.node_ids[targets_of(batch.indptr.numpy())]
        found = np.zeros_like(degrees)
        np.add.at(found, (targets, batch.relations), batch.edge_weights)
        seen = found > 0
        np.testing.assert_allclose(found[seen], degrees[seen], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_g9_losses_are_equal_bit_for_bit_whatever_runs_beside_what(name):
    """Case G9, for hetero models."""
    settings = Settings(model=name, epochs=2, batch_size=8, types=SPEC.types)
    weights, serial = train_by_hand(GRAPH, settings)
    again, pipelined = train_by_hand(GRAPH, replace(settings, pipelined=True, num_sampling_workers=2))
    assert pipelined == serial
    assert all(torch.equal(weights[name], again[name]) for name in weights)


@pytest.mark.parametrize("name", NAMES)
def test_g38_batches_that_lack_a_type_or_a_relation_train_all_the_same(name):
    """Case G38: a node type that is absent in a batch crashed, and parameters without a gradient broke reductions."""
    lonely = replace(
        GRAPH,
        indptr=np.zeros(GRAPH.num_nodes + 1, dtype=np.int64),
        indices=GRAPH.indices[:0],
        edge_types=GRAPH.edge_types[:0],
    )
    weights, losses = train_by_hand(lonely, Settings(model=name, epochs=1, batch_size=8, types=SPEC.types))
    assert np.isfinite(losses).all()
    only = GRAPH.edge_types == SPEC.types.relations.index(("author", "to", "paper"))
    few = replace(
        GRAPH,
        indptr=np.concatenate([[0], np.cumsum(np.bincount(targets_of(GRAPH.indptr)[only], minlength=GRAPH.num_nodes))]),
        indices=GRAPH.indices[only],
        edge_types=GRAPH.edge_types[only],
    )
    weights_of_few, losses = train_by_hand(few, Settings(model=name, epochs=1, batch_size=8, types=SPEC.types))
    assert np.isfinite(losses).all()
    assert all(torch.isfinite(tensor).all() for tensor in (*weights.values(), *weights_of_few.values()))


def authors_know() -> HeteroData:
    """Papers without a word of their topic, which their authors' features tell."""
    rng = np.random.default_rng(0)
    topic, field = rng.integers(3, size=240), rng.integers(3, size=120)
    data = HeteroData()
    data["paper"].x = torch.from_numpy(rng.standard_normal((240, 4)).astype(np.float32))
    data["paper"].y = torch.from_numpy(topic)
    data["author"].x = torch.from_numpy(np.eye(3, 5)[field].astype(np.float32))
    writers = np.stack([rng.choice(np.flatnonzero(field == topic[paper]), size=3) for paper in range(240)])
    others = np.stack([rng.choice(np.flatnonzero(field != topic[paper]), size=3) for paper in range(240)])
    papers = torch.arange(240).repeat_interleave(3)
    for relation, ends in (("writes", writers), ("rejects", others)):
        data["author", relation, "paper"].edge_index = torch.stack((torch.from_numpy(ends.reshape(-1)), papers))
    return data


def run_of(path: Path, job_dir: Path, *, task: str = "train", name: str = "graphsage", **model) -> RankRun:
    spec = TrainSpec(
        kind="mqgnn",
        task=task,
        from_job=None if task == "train" else "before",
        dataset=DatasetSpec(path=str(path)),
        model=SPEC_OF_MODEL[name](name=name, hidden_size=16, fanouts=(4, 2), **model),
        training=TrainingSpec(epochs=12, batch_size=48, eval_every_epochs=12, checkpoint_every_epochs=12),
    )
    return sampled_run(
        spec,
        job_dir=job_dir,
        data=DataPaths(root=None, cache=path.parent / "cache"),
        model_from=None if task == "train" else job_dir / "export",
        report_every_steps=100,
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_job_on_a_saved_hetero_data_learns_what_types_tell_and_its_model_is_used_again(tmp_path, name):
    path = tmp_path / "papers.pt"
    torch.save(authors_know(), path)
    plain = train(run_of(path, tmp_path / "plain"))["test_accuracy"]
    scores = train(run_of(path, tmp_path / "typed", name=name, hetero=True))
    assert scores["test_accuracy"] > 0.9 > plain + 0.1
    used = predict(run_of(path, tmp_path / "typed", task="evaluate", name=name, hetero=True))
    assert used["test_accuracy"] == scores["test_accuracy"]
    model = load_exported(Folder(tmp_path / "typed" / "export"))
    assert model.types.relations == (("author", "writes", "paper"), ("author", "rejects", "paper"))


def test_the_shape_of_a_hetero_job_says_so_and_what_does_not_fit_is_refused(tmp_path):
    path = tmp_path / "papers.pt"
    torch.save(authors_know(), path)
    spec = run_of(path, tmp_path, hetero=True).spec
    dataset = load_dataset(spec.dataset, paths=DataPaths(root=None, cache=tmp_path / "cache"))
    shape = describe_job(spec, dataset)
    assert (shape.model, shape.sampler) == ("graphsage hetero", "uniform hetero")
    plain = replace(dataset, graphs=(replace(dataset.graphs[0], node_types=None, edge_types=None),))
    with pytest.raises(ModelInvalidError, match="has none: add a column type") as caught:
        describe_job(spec, plain)
    assert caught.value.details["pointer"] == "/model/hetero"
    both = replace(dataset.graphs[0], split=np.zeros(360, dtype=np.int8))
    with pytest.raises(ModelInvalidError, match="predicts nodes of one type; the split of papers has paper, author"):
        describe_job(spec, replace(dataset, graphs=(both,)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "gcn"}, "gcn has no form for several types; choose graphsage, gat, gatv2, gin"),
        ({"sampler": "ladies"}, "found sampler 'ladies'"),
        ({"temporal": True}, "temporal True"),
        ({"sampler_backend": "pyg_lib"}, "sampler_backend 'pyg_lib'"),
    ],
)
def test_what_hetero_models_cannot_do_is_refused_with_the_spec(options, words):
    with pytest.raises(ValueError, match=words):
        SampledGNNSpec(**{"name": "graphsage", "hetero": True, **options})
