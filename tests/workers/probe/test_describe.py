"""What the planner is told of a job, and when a profile may be used again."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from planner.cluster import ClusterSpec, NodeSpec
from planner.profiles import ProfileKey, SampledShape, ShardCounts, Traffic, TransformerShape
from tests.planner.made_up import cluster
from workers.data.features import DenseFeatures
from workers.data.graph import NO_SPLIT, TEST, TRAIN, Graph, GraphDataset
from workers.model_specs.custom import CustomGNNSpec
from workers.model_specs.transformers import ExphormerSpec, GraphGPSSpec, GTSpec, NAGphormerSpec, SGFormerSpec
from workers.probe import describe
from workers.probe.describe import describe_job, graph_bytes, profile_key
from workers.probe.toy_graph import ring_graph
from workers.spec import DatasetSpec, GraphormerSpec, SampledGNNSpec, TrainingSpec, TrainSpec


def graph_of(num_nodes: int, *, part: int = TRAIN) -> Graph:
    split = np.full(num_nodes, part, dtype=np.int8)
    return Graph(
        indptr=np.zeros(num_nodes + 1, dtype=np.int64),
        indices=np.zeros(0, dtype=np.int32),
        features=DenseFeatures(np.ones((num_nodes, 8), dtype=np.float32)),
        y=np.zeros(num_nodes, dtype=np.int64),
        split=split,
    )


def dataset_of(*graphs: Graph) -> GraphDataset:
    return GraphDataset(name="made up", graphs=graphs, num_features=8, num_classes=2, fingerprint="")


def transformer_spec(*, training: TrainingSpec | None = None, **model) -> TrainSpec:
    return TrainSpec(
        kind="megagraph",
        dataset=DatasetSpec(name="karate"),
        model=GraphormerSpec(**model),
        training=training or TrainingSpec(),
    )


def sampled_spec(**model) -> TrainSpec:
    return TrainSpec(kind="mqgnn", dataset=DatasetSpec(name="karate"), model=SampledGNNSpec(name="graphsage", **model))


def test_one_graph_is_one_size_and_one_graph_a_step():
    shape = describe_job(transformer_spec(num_layers=3, max_distance=5), dataset_of(ring_graph()))
    assert isinstance(shape, TransformerShape)
    assert (shape.graph_sizes, shape.graphs_per_step) == ((64,), 1)
    assert (shape.num_layers, shape.num_buckets, shape.num_features, shape.num_classes) == (3, 7, 8, 2)


def test_near_pairs_are_counted_and_no_byte_lies_ready_of_other_pairs():
    shape = describe_job(transformer_spec(max_distance=2, index="near_pairs"), dataset_of(ring_graph()))
    assert shape.pair_bytes == 0
    assert shape.near_pairs[:3] == (64 * 5, 32 * 5, 16 * 5)  # a node, two on either side
    dense = describe_job(transformer_spec(max_distance=2), dataset_of(ring_graph()))
    assert (dense.pair_bytes, dense.near_pairs) == (1, ())


def test_how_much_attention_drops_is_no_part_of_the_shape():
    some, more = (describe_job(transformer_spec(attention_dropout=p), dataset_of(ring_graph())) for p in (0.1, 0.2))
    assert some == more


def test_graphs_without_training_nodes_are_only_evaluated():
    graphs = (graph_of(10), graph_of(20, part=TEST), graph_of(30))
    shape = describe_job(transformer_spec(training=TrainingSpec(batch_size=16)), dataset_of(*graphs))
    assert (shape.graph_sizes, shape.other_graph_sizes) == ((10, 30), (20,))
    assert shape.graphs_per_step == 2


def test_edges_of_one_graph_are_counted_for_every_number_of_shards():
    spec = TrainSpec(kind="megagraph", dataset=DatasetSpec(name="karate"), model=SGFormerSpec(num_layers=3))
    shape = describe_job(spec, dataset_of(ring_graph()), most_ranks=3)
    assert isinstance(shape, TransformerShape)
    # a ring of 64: each node hears both neighbours, each shard needs the row beyond either end
    assert shape.shards == (
        ShardCounts(cp_degree=2, most_edges=64, halo_rows=2),
        ShardCounts(cp_degree=3, most_edges=44, halo_rows=2),
    )
    assert shape.traffic == Traffic(halos=(64, 64, 64), sums=(64 * 64 + 64 + 2,))
    assert describe_job(spec, dataset_of(ring_graph(), ring_graph()), most_ranks=3).shards == ()
    assert describe_job(transformer_spec(), dataset_of(ring_graph()), most_ranks=3).shards == ()


def test_a_sampled_job_counts_its_training_nodes_and_its_store():
    graph = ring_graph()
    graph.split[:10] = NO_SPLIT
    shape = describe_job(sampled_spec(fanouts=(4, 3)), dataset_of(graph))
    assert isinstance(shape, SampledShape)
    assert (shape.num_nodes, shape.num_edges, shape.num_train) == (64, 128, 54)
    assert (shape.fanouts, shape.num_layers, shape.largest_degree) == ((4, 3), 2, 2)
    # indptr, indices, labels, split, features
    assert shape.graph_bytes == graph_bytes(graph) == 65 * 8 + 128 * 4 + 64 * 8 + 64 + 64 * 8 * 4


def test_a_sampled_job_on_many_graphs_is_one_on_all_of_them_side_by_side():
    one, both = (describe_job(sampled_spec(), dataset_of(*graphs)) for graphs in ([ring_graph()], [ring_graph()] * 2))
    assert (both.num_nodes, both.num_edges, both.num_train) == (128, 256, 128)
    assert both.graph_bytes == 4 * one.graph_bytes  # the stored ones, and a copy
    assert both.sampler == one.sampler == "uniform"


@pytest.mark.parametrize(
    "other",
    [
        transformer_spec(hidden_size=128),
        transformer_spec(dropout=0.0),
        transformer_spec(input_dropout=0.0),
        transformer_spec(attention_dropout=0.1),
        transformer_spec(index="near_pairs"),
        transformer_spec(training=TrainingSpec(dtype="float64")),
        transformer_spec(training=TrainingSpec(precision="bfloat16")),
    ],
)
def test_a_job_that_computes_something_else_has_another_key(other):
    dataset = dataset_of(ring_graph())
    keys = {
        profile_key(describe_job(spec, dataset), cluster=cluster(), num_ranks=2).fingerprint
        for spec in (transformer_spec(), other)
    }
    assert len(keys) == 2


def test_a_job_that_only_trains_longer_shares_the_key():
    dataset = dataset_of(ring_graph())
    longer = transformer_spec(training=TrainingSpec(epochs=500, learning_rate=0.1))
    keys = {
        profile_key(describe_job(spec, dataset), cluster=cluster(), num_ranks=2).fingerprint
        for spec in (transformer_spec(), longer)
    }
    assert len(keys) == 1


def test_the_form_of_the_kernels_is_part_of_the_key(monkeypatch):
    shape = describe_job(transformer_spec(), dataset_of(ring_graph()))
    prints = set()
    for form in ("plain", "native avx512"):
        monkeypatch.setattr(describe, "kernel_form", lambda form=form: form)
        prints.add(profile_key(shape, cluster=cluster(), num_ranks=2).fingerprint)
    assert len(prints) == 2


def test_ranks_and_software_are_part_of_the_key():
    shape = describe_job(transformer_spec(), dataset_of(ring_graph()))
    key = profile_key(shape, cluster=cluster(), num_ranks=2)
    other = key.model_copy(update={"software": (("torch", "1.0"),)})
    prints = {entry.fingerprint for entry in (key, other, profile_key(shape, cluster=cluster(), num_ranks=4))}
    assert len(prints) == 3
    assert dict(key.software)["torch"].startswith("2.")


NODE = NodeSpec(
    node_id="a", address="10.0.0.1", num_cpus=8, num_gpus=2, physical_cores=8, device_name="H200", cpu_name="EPYC"
)


def key_on(*nodes: NodeSpec, **asked: float) -> ProfileKey:
    shape = describe_job(transformer_spec(), dataset_of(ring_graph()))
    return profile_key(shape, cluster=ClusterSpec(nodes=nodes), num_ranks=2, **asked)


@pytest.mark.parametrize(
    "other",
    [
        key_on(NODE, cpus_per_rank=2),
        key_on(NODE.model_copy(update={"physical_cores": 4})),
        key_on(NODE.model_copy(update={"cpu_name": "Xeon"})),
        key_on(NODE, gpus_per_rank=1),
        key_on(NODE, NODE, cpus_per_rank=8),
    ],
    ids=["cpus", "cores", "cpu_name", "gpus", "two_nodes"],
)
def test_ranks_that_lie_elsewhere_have_another_key(other):
    assert other.fingerprint != key_on(NODE).fingerprint


def test_the_processor_that_feeds_a_gpu_is_part_of_the_key():
    key, other = (key_on(NODE.model_copy(update={"cpu_name": name}), gpus_per_rank=1) for name in ("EPYC", "Xeon"))
    assert (key.device_name, key.cpu_name, key.device_kind) == ("H200", "EPYC", "cuda")
    assert key.fingerprint != other.fingerprint


def test_ranks_on_different_nodes_are_told_from_neighbours():
    assert key_on(NODE).ranks_per_node == (2,)
    apart = key_on(NODE, NODE, cpus_per_rank=8)
    assert apart.ranks_per_node == (1, 1)
    assert key_on(NODE, cpus_per_rank=8).ranks_per_node == (1,)


def test_nodes_that_cannot_hold_a_rank_do_not_change_the_key():
    small = NodeSpec(node_id="b", address="10.0.0.2", num_cpus=1, cpu_name="small")
    assert key_on(NODE, small, cpus_per_rank=2) == key_on(NODE, cpus_per_rank=2)


def test_a_sampled_job_has_a_key_for_each_graph_of_equal_size():
    first, second = (replace(dataset_of(ring_graph()), fingerprint=name) for name in ("one", "two"))
    keys = {profile_key(describe_job(sampled_spec(), data), cluster=cluster(), num_ranks=2) for data in (first, second)}
    assert len({key.fingerprint for key in keys}) == 2


def test_describing_a_job_imports_no_tensor_library():
    code = "import sys, workers.probe.describe; print(sorted({'torch', 'ray', 'numba'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (GTSpec(), {"laplacian_size": 4}),
        (GTSpec(), {"norm": "layer"}),
        (GraphGPSSpec(), {"message_passing": "gine"}),
        (ExphormerSpec(), {"expander_degree": 6}),
        (ExphormerSpec(), {"num_global": 2}),
        (SGFormerSpec(), {"num_layers": 3}),
        (NAGphormerSpec(), {"num_hops": 2}),
    ],
)
def test_every_number_of_a_model_is_part_of_the_key(model, changes):
    dataset = dataset_of(ring_graph())
    specs = (
        transformer_spec().model_copy(update={"model": spec}) for spec in (model, model.model_copy(update=changes))
    )
    keys = {profile_key(describe_job(spec, dataset), cluster=cluster(), num_ranks=2).fingerprint for spec in specs}
    assert len(keys) == 2


def test_modules_of_ones_own_are_told_apart_by_path_and_arguments():
    dataset = dataset_of(ring_graph())
    specs = [
        CustomGNNSpec(module=module, arguments=arguments)
        for module, arguments in (("mine:build", {"depth": 2}), ("mine:build", {"depth": 3}), ("mine:other", {}))
    ]
    shapes = [describe_job(sampled_spec().model_copy(update={"model": spec}), dataset) for spec in specs]
    assert shapes[0].model == 'custom_gnn mine:build({"depth": 2}) edge_index'
    assert len({profile_key(shape, cluster=cluster(), num_ranks=2).fingerprint for shape in shapes}) == 3


@pytest.mark.parametrize(
    ("model", "mixes"),
    [
        (GraphormerSpec(), ("dense",)),
        (GTSpec(), ("edges",)),
        (GraphGPSSpec(), ("dense", "edges")),
        (ExphormerSpec(), ("edges", "sums")),
        (SGFormerSpec(), ("edges", "sums")),
        (NAGphormerSpec(), ()),
    ],
)
def test_a_shape_says_how_rows_meet(model, mixes):
    shape = describe_job(transformer_spec().model_copy(update={"model": model}), dataset_of(ring_graph()))
    assert (shape.mixes, shape.row_width) == (mixes, model.row_width)
