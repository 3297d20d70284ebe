import numpy as np
import pytest
import torch

from planner.cost import memory
from tests.kit.objectives import classify
from tests.workers.mqgnn.graphs import clustered_graph
from workers.comm.axis import Axis
from workers.data.graph import SPLIT_NAMES
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.evaluation import CHUNK_BYTES, Evaluator
from workers.spec import MODELS_OF_KIND, SPEC_OF_MODEL, SampledGNNSpec
from workers.training.memory import PeakMemory

GRAPH = clustered_graph(300, degree=10)


def build(name: str, num_layers: int) -> torch.nn.Module:
    torch.manual_seed(1)
    spec = SPEC_OF_MODEL[name](name=name, hidden_size=16, fanouts=(2,) * num_layers, dropout=0.5)
    return build_sampled_gnn(spec, num_features=8, num_classes=3).double()


def evaluator(**settings) -> Evaluator:
    return Evaluator(GRAPH, axis=Axis(), device=torch.device("cpu"), dtype=torch.float64, **settings)


@pytest.mark.parametrize("chunk_bytes", [64, 4096, 2**26])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS_OF_KIND["mqgnn"] if name != "custom_gnn"])
def test_scores_equal_those_of_the_plain_class_on_the_whole_graph(name, num_layers, chunk_bytes):
    model = build(name, num_layers)
    targets = np.repeat(np.arange(300), np.diff(GRAPH.indptr))
    edge_index = torch.from_numpy(np.stack((GRAPH.indices, targets)).astype(np.int64))
    x = torch.from_numpy(GRAPH.features.gather(np.arange(300))).double()
    logits = model.eval()(x, edge_index)
    hit = logits.argmax(dim=1).numpy() == GRAPH.y
    expected = {f"{name}_accuracy": hit[GRAPH.split == part].mean() for part, name in enumerate(SPLIT_NAMES)}
    model.train()  # dropout must not reach the evaluation
    assert evaluator(chunk_bytes=chunk_bytes).scores(model, objective=classify(3)) == expected


def test_evaluating_twice_gives_the_same_scores_in_the_same_order_of_nodes():
    model, scoring = build("graphsage", 2), evaluator()
    assert scoring.scores(model, objective=classify(3)) == scoring.scores(model, objective=classify(3))


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_evaluation_holds_two_hidden_matrices_and_a_few_chunks_at_most(name):
    graph, hidden_size, chunk_bytes = clustered_graph(20_000), 512, 2**20  # so large that the allocator keeps none
    spec = SampledGNNSpec(name=name, hidden_size=hidden_size, fanouts=(2, 2, 2))
    model = build_sampled_gnn(spec, num_features=8, num_classes=3)
    counting = Evaluator(graph, axis=Axis(), device=torch.device("cpu"), dtype=torch.float32, chunk_bytes=chunk_bytes)
    meter = PeakMemory()
    meter.start()
    counting.scores(model, objective=classify(3))
    matrix_bytes = graph.num_nodes * hidden_size * 4
    # what the module promises: two of them, five chunks of rows and one of edges; the rest is the allocator's, who may
    # also place one of the matrices into memory that an earlier test gave back
    assert 0.9 * matrix_bytes < meter.peak_bytes() < 2 * matrix_bytes + 6 * chunk_bytes + 8 * 2**20


def test_the_planner_prices_the_chunks_that_evaluation_takes():
    assert memory.EVALUATION_CHUNK_BYTES == CHUNK_BYTES


def test_a_small_chunk_size_bounds_the_rows_gathered_at_a_time():
    gathered = []

    class Watching:
        num_features = 8

        def gather(self, rows):
            gathered.append(len(rows))
            return GRAPH.features.gather(rows)

    watched = type(GRAPH)(GRAPH.indptr, GRAPH.indices, Watching(), GRAPH.y, GRAPH.split)
    counting = Evaluator(
        watched,
        axis=Axis(),
        device=torch.device("cpu"),
        dtype=torch.float64,
        chunk_bytes=50 * 8 * 8,
    )
    counting.scores(build("graphsage", 2), objective=classify(3))
    assert len(gathered) > 1
    assert max(gathered) <= 50
