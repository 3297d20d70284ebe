"""What the planner is told of a job, and when a profile may be used again."""

import subprocess
import sys

import numpy as np
import pytest

from planner.profiles import SampledShape, TransformerShape
from workers.data.features import DenseFeatures
from workers.data.graph import NO_SPLIT, TEST, TRAIN, Graph, GraphDataset
from workers.errors import DatasetInvalidError
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


def test_graphs_without_training_nodes_are_only_evaluated():
    graphs = (graph_of(10), graph_of(20, part=TEST), graph_of(30))
    shape = describe_job(transformer_spec(training=TrainingSpec(batch_size=16)), dataset_of(*graphs))
    assert (shape.graph_sizes, shape.other_graph_sizes) == ((10, 30), (20,))
    assert shape.graphs_per_step == 2


def test_a_sampled_job_counts_its_training_nodes_and_its_store():
    graph = ring_graph()
    graph.split[:10] = NO_SPLIT
    shape = describe_job(sampled_spec(fanouts=(4, 3)), dataset_of(graph))
    assert isinstance(shape, SampledShape)
    assert (shape.num_nodes, shape.num_edges, shape.num_train) == (64, 128, 54)
    assert (shape.fanouts, shape.num_layers) == ((4, 3), 2)
    # indptr, indices, labels, split, features
    assert shape.graph_bytes == graph_bytes(graph) == 65 * 8 + 128 * 4 + 64 * 8 + 64 + 64 * 8 * 4


def test_a_sampled_job_on_many_graphs_is_refused_by_name():
    with pytest.raises(DatasetInvalidError, match="made up has 2"):
        describe_job(sampled_spec(), dataset_of(graph_of(5), graph_of(5)))


@pytest.mark.parametrize(
    "other",
    [
        transformer_spec(hidden_size=128),
        transformer_spec(dropout=0.0, input_dropout=0.0),
        transformer_spec(training=TrainingSpec(dtype="float64")),
    ],
)
def test_a_job_that_computes_something_else_has_another_key(other):
    dataset = dataset_of(ring_graph())
    keys = {
        profile_key(describe_job(spec, dataset), num_ranks=2, device_name="cpu").fingerprint
        for spec in (transformer_spec(), other)
    }
    assert len(keys) == 2


def test_a_job_that_only_trains_longer_shares_the_key():
    dataset = dataset_of(ring_graph())
    longer = transformer_spec(training=TrainingSpec(epochs=500, learning_rate=0.1))
    keys = {
        profile_key(describe_job(spec, dataset), num_ranks=2, device_name="cpu").fingerprint
        for spec in (transformer_spec(), longer)
    }
    assert len(keys) == 1


def test_ranks_device_and_software_are_part_of_the_key():
    shape = describe_job(transformer_spec(), dataset_of(ring_graph()))
    key = profile_key(shape, num_ranks=2, device_name="cpu")
    changes = [{"num_ranks": 4}, {"device_name": "gpu"}, {"device_kind": "cuda"}, {"software": (("torch", "1.0"),)}]
    prints = {key.fingerprint, *(key.model_copy(update=change).fingerprint for change in changes)}
    assert len(prints) == 5
    assert dict(key.software)["torch"].startswith("2.")


def test_describing_a_job_imports_no_tensor_library():
    code = "import sys, workers.probe.describe; print(sorted({'torch', 'ray', 'numba'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
