"""Features that are read where they are: the same training as with gathered ones, and nothing gathered."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import CPU, Settings, train_by_hand
from workers.data.features import DenseFeatures, sparse_from_coordinates
from workers.data.graph import Graph
from workers.models.registry import build_model
from workers.mqgnn.preparation import build_stages, choose_reading
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.ops.native import native_library
from workers.spec import SPEC_OF_MODEL

pytestmark = pytest.mark.skipif(native_library() is None, reason="no native library is installed")

READINGS = {
    **dict.fromkeys(("graphsage", "gcn", "gin", "gat", "sgc", "tag", "arma"), "edges"),
    "appnp": "nodes",
    "gatv2": "gathered",
    "pna": "gathered",
}


def sparse_graph() -> Graph:
    graph = clustered_graph(300, degree=10, num_features=20)
    dense = graph.features.gather(np.arange(300)) * (np.random.default_rng(0).random((300, 20)) < 0.2)
    rows, columns = dense.nonzero()
    return replace(graph, features=sparse_from_coordinates(rows, columns, dense[rows, columns], shape=dense.shape))


GRAPHS = {"dense": clustered_graph(300, degree=10), "sparse": sparse_graph()}


def reading_of(name: str, graph: Graph, *, dtype: torch.dtype = torch.float32) -> str:
    model = build_model(SPEC_OF_MODEL[name](name=name), num_features=graph.features.num_features, num_classes=3)
    return choose_reading(model, graph, device=CPU, dtype=dtype)


@pytest.mark.parametrize("name", READINGS)
def test_what_a_kernel_covers_is_read_in_place(name: str) -> None:
    assert reading_of(name, GRAPHS["dense"]) == READINGS[name]
    assert reading_of(name, GRAPHS["dense"], dtype=torch.float64) == "gathered"
    takes_sparse = name not in ("gat", "gatv2", "pna", "appnp")
    assert reading_of(name, GRAPHS["sparse"]) == ("edges" if takes_sparse else "gathered")


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", [name for name, reading in READINGS.items() if reading != "gathered"])
def test_training_in_place_gives_the_weights_that_gathered_features_do(name: str, kind: str) -> None:
    settings = Settings(model=name, dtype=torch.float32, epochs=1, dropout=0.3)
    weights, losses = train_by_hand(GRAPHS[kind], settings)
    found, found_losses = train_by_hand(GRAPHS[kind], replace(settings, in_place=True))
    np.testing.assert_allclose(found_losses, losses, rtol=1e-4)
    for key, value in weights.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["ladies", "fastgcn+f+d", "labor"])
def test_every_sampler_leaves_the_outermost_nodes_where_they_are(name: str) -> None:
    settings = Settings(model="gcn", sampler=name, dtype=torch.float32, epochs=1, fanouts=(30, 20))
    losses = train_by_hand(GRAPHS["dense"], settings)[1]
    np.testing.assert_allclose(train_by_hand(GRAPHS["dense"], replace(settings, in_place=True))[1], losses, rtol=1e-4)


class Untouchable(DenseFeatures):
    """Features that may not be gathered."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        raise AssertionError(f"{len(rows)} rows were gathered")


@pytest.mark.parametrize("name", ["graphsage", "gat", "appnp"])
def test_nothing_is_gathered(name: str) -> None:
    features = GRAPHS["dense"].features
    assert isinstance(features, DenseFeatures)
    graph = replace(GRAPHS["dense"], features=Untouchable(features.matrix))
    _, losses = train_by_hand(graph, Settings(model=name, dtype=torch.float32, in_place=True, epochs=1))
    assert np.isfinite(losses).all()
    order = SeedOrder(np.arange(300), 32, seed=0, world_size=1)
    stages = build_stages(graph, order=order, fanouts=(3, 2), rank=0, device=CPU, reading="edges")
    batch = stages[1].make_worker()(stages[0].make_worker()(BatchTask(epoch=1, batch=0)))
    assert batch.num_sampled_nodes_per_hop[-1] == 0
    assert batch.nbytes < 32 * (1 + 3 + 6) * 32  # edges and numbers of nodes, no features
    assert not isinstance(batch.x, torch.Tensor)
