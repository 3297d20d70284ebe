import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn.models import GCN, GraphSAGE

from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from workers.data.graph import Graph
from workers.models import convolutions
from workers.models.blocks import SampledEdges
from workers.models.sampled import build_sampled_gnn, forward_blocks
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.neighbors import NeighborSampler
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.ops import aggregation
from workers.ops.aggregation import linear as aggregation_linear
from workers.spec import MODELS_OF_KIND, SPEC_OF_MODEL

GRAPH = clustered_graph(400, degree=12)
FANOUTS = [(4,), (4, 3), (3, 2, 2), (-1, -1), (2, -1, 3)]


def build(name: str, fanouts: tuple[int, ...], *, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    spec = SPEC_OF_MODEL[name](name=name, hidden_size=16, fanouts=fanouts, dropout=dropout)
    return build_sampled_gnn(spec, num_features=8, num_classes=3).double()


def sample(
    graph: Graph, seeds: np.ndarray, fanouts: tuple[int, ...], *, key: int = 1
) -> tuple[SampledSubgraph, Tensor]:
    subgraph = NeighborSampler(csc_of(graph), fanouts=fanouts).sample(seeds, key=key)
    return subgraph, torch.from_numpy(graph.features.gather(subgraph.node_ids)).double()


def edge_index(subgraph: SampledSubgraph) -> Tensor:
    targets = np.repeat(np.arange(len(subgraph.indptr) - 1), np.diff(subgraph.indptr))
    return torch.from_numpy(np.stack((subgraph.indices, targets)).astype(np.int64))


def whole_graph(graph: Graph) -> tuple[Tensor, Tensor]:
    """(x, edge_index) as PyG takes them."""
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    edges = torch.from_numpy(np.stack((graph.indices, targets)).astype(np.int64))
    return torch.from_numpy(graph.features.gather(np.arange(graph.num_nodes))).double(), edges


def run_blocks(
    model: nn.Module, x: Tensor, subgraph: SampledSubgraph, *, graph: Graph = GRAPH, draw: int = 0
) -> Tensor:
    edges = SampledEdges(
        node_ids=torch.from_numpy(subgraph.node_ids).long(),
        degrees=torch.from_numpy(graph.in_degrees(subgraph.node_ids)),
        indptr=torch.from_numpy(subgraph.indptr),
        indices=torch.from_numpy(subgraph.indices),
        num_nodes_per_hop=subgraph.num_nodes_per_hop,
        num_edges_per_hop=subgraph.num_edges_per_hop,
    )
    return forward_blocks(model, x, edges, draw=draw)


def gradients(model: nn.Module, output: Tensor) -> list[Tensor]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    total = (output * weights).sum()  # ARMA has weights that one step does not use
    return list(torch.autograd.grad(total, model.parameters(), allow_unused=True, materialize_grads=True))


def test_models_are_the_classes_of_pyg_themselves():
    assert type(build("graphsage", (3, 2))) is GraphSAGE
    assert type(build("gcn", (3, 2))) is GCN


@pytest.mark.parametrize("fanouts", FANOUTS)
def test_trimmed_blocks_equal_graphsage_on_the_whole_subgraph_in_outputs_and_gradients(fanouts):
    model = build("graphsage", fanouts)
    subgraph, x = sample(GRAPH, np.arange(0, 60, 2), fanouts)
    ours, theirs = run_blocks(model, x, subgraph), model(x, edge_index(subgraph))[:30]
    check_same(model, ours, theirs)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("name", [name for name in MODELS_OF_KIND["mqgnn"] if name != "custom_gnn"])
def test_with_all_neighbours_the_blocks_equal_the_class_on_the_whole_graph(name, num_layers):
    model, seeds = build(name, (-1,) * num_layers), np.arange(0, 60, 2)
    subgraph, x = sample(GRAPH, seeds, (-1,) * num_layers)
    check_same(model, run_blocks(model, x, subgraph), model(*whole_graph(GRAPH))[seeds])


@pytest.mark.parametrize("fanouts", [(4,), (4, 3)])
@pytest.mark.parametrize("name", ["graphsage", "gcn"])
@torch.no_grad()
def test_the_mean_over_many_samples_is_what_the_model_says_on_the_whole_graph(name, fanouts):
    model, seeds = build(name, fanouts), np.arange(20)
    model.act = nn.Identity()  # the expectation passes through sums and products, not through a kink
    exact = model(*whole_graph(GRAPH))[seeds]
    samples = (sample(GRAPH, seeds, fanouts, key=key) for key in range(2000))
    drawn = torch.stack([run_blocks(model, x, subgraph) for subgraph, x in samples])
    error = drawn.std(dim=0) / len(drawn) ** 0.5
    assert ((drawn.mean(dim=0) - exact).abs() < 5 * error + 1e-12).all()
    assert error.mean() < 0.05 * exact.abs().mean()  # so that the line above can fail


def check_same(model: nn.Module, ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-11)


def test_trimmed_blocks_equal_the_trimming_of_pyg_for_graphsage():
    model = build("graphsage", (4, 3))
    subgraph, x = sample(GRAPH, np.arange(30), (4, 3))
    theirs = model(
        x,
        edge_index(subgraph),
        num_sampled_nodes_per_hop=list(subgraph.num_nodes_per_hop),
        num_sampled_edges_per_hop=list(subgraph.num_edges_per_hop),
    )
    torch.testing.assert_close(run_blocks(model, x, subgraph), theirs[:30], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_no_layer_computes_a_row_that_is_thrown_away(name, monkeypatch):
    model, rows = build(name, (3, 2, 2)), []
    subgraph, x = sample(GRAPH, np.arange(20), (3, 2, 2))

    def linear(*arguments: Tensor, **options: object) -> Tensor:
        out = aggregation_linear(*arguments, **options)
        rows.append(len(out))
        return out

    monkeypatch.setattr(aggregation, "linear", linear)
    monkeypatch.setattr(convolutions, "_is_sum_first", lambda *_: True)
    run_blocks(model, x, subgraph)
    up_to_hop = np.cumsum(subgraph.num_nodes_per_hop).tolist()
    assert rows == [up_to_hop[2], up_to_hop[1], up_to_hop[0]]


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_a_batch_of_isolated_nodes_gives_one_finite_row_per_seed(name):
    graph = graph_of_edges([(0, 1)], num_nodes=8, num_features=8)
    model = build(name, (3, 2))
    subgraph, x = sample(graph, np.arange(2, 8), (3, 2))
    output = run_blocks(model, x, subgraph, graph=graph)
    assert output.shape == (6, 3)
    assert output.isfinite().all()
    torch.testing.assert_close(output, model(x, edge_index(subgraph)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_isolated_nodes_beside_others_stay_finite_in_outputs_and_gradients(name):
    graph = graph_of_edges([(0, 1), (1, 2), (5, 2)], num_nodes=8, num_features=8)
    model = build(name, (3, 2))
    subgraph, x = sample(graph, np.arange(8), (3, 2))
    output = run_blocks(model, x, subgraph, graph=graph)
    torch.testing.assert_close(output, model(x, edge_index(subgraph)), rtol=0, atol=1e-12)
    assert all(gradient.isfinite().all() for gradient in gradients(model, output))


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_no_seeds_give_no_rows(name):
    subgraph, x = sample(GRAPH, np.empty(0, dtype=np.int64), (3, 2))
    assert run_blocks(build(name, (3, 2)), x, subgraph).shape == (0, 3)


def test_dropout_acts_between_layers_in_training_only():
    model = build("graphsage", (3, 2), dropout=0.5)
    subgraph, x = sample(GRAPH, np.arange(20), (3, 2))
    assert torch.equal(run_blocks(model, x, subgraph, draw=1), run_blocks(model, x, subgraph, draw=1))
    assert not torch.equal(run_blocks(model, x, subgraph, draw=1), run_blocks(model, x, subgraph, draw=2))
    model.eval()
    torch.testing.assert_close(run_blocks(model, x, subgraph), model(x, edge_index(subgraph))[:20], rtol=0, atol=1e-12)
