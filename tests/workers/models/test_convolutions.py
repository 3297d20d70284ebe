"""Our kernels under PyG's classes: what a block gives is what the class itself says, in outputs and gradients."""

import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    APPNP,
    MLP,
    ARMAConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    SAGEConv,
    SGConv,
    TAGConv,
)

from tests.workers.mqgnn.graphs import clustered_graph
from workers.models import convolutions
from workers.models.appnp import APPNPNet, spread
from workers.models.blocks import Block, InPlace
from workers.models.convolutions import convolve, reads_in_place, width_of
from workers.mqgnn.preparation import in_place_of
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.neighbors import NeighborSampler
from workers.ops import aggregation, native_aggregation
from workers.ops.native import native_library

GRAPH = clustered_graph(300, degree=10, num_features=12)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def chain(*widths: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2]))


FUSED: dict[str, Any] = {
    "sage": lambda: SAGEConv(12, 7),
    "sage without root": lambda: SAGEConv(12, 7, root_weight=False, bias=False),
    "gcn": lambda: GCNConv(12, 7),
    "gcn wide": lambda: GCNConv(12, 40, improved=True, bias=False),
    "gcn without loops": lambda: GCNConv(12, 7, add_self_loops=False),
    "gin mlp": lambda: GINConv(MLP([12, 9, 7], norm=None), eps=0.3),
    "gin chain": lambda: GINConv(chain(12, 9, 7)),
    "gin linear": lambda: GINConv(nn.Linear(12, 7)),
    "gin other": lambda: GINConv(nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 7))),
    "gat": lambda: GATConv(12, 5, heads=3),
    "gat mean": lambda: GATConv(12, 5, heads=3, concat=False, negative_slope=0.1),
    "gat without loops": lambda: GATConv(12, 5, heads=2, add_self_loops=False, bias=False),
    "sgc": lambda: SGConv(12, 7),
    "tag": lambda: TAGConv(12, 7, K=1),
    "arma": lambda: ARMAConv(12, 7, num_stacks=2),
}
AS_WRITTEN: dict[str, Any] = {
    "sage max": lambda: SAGEConv(12, 7, aggr="max"),
    "sage normalized": lambda: SAGEConv(12, 7, normalize=True),
    "gin trained eps": lambda: GINConv(chain(12, 9, 7), train_eps=True),
    "gat residual": lambda: GATConv(12, 5, heads=2, residual=True),
    "gatv2": lambda: GATv2Conv(12, 5, heads=2),
}


def build(make: Any, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    convolution = make().to(dtype)
    for parameter in convolution.parameters():
        nn.init.normal_(parameter, std=0.5)  # biases, too, which start at zero
    return convolution


def whole_graph(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(x, edge_index) as PyG takes them."""
    targets = np.repeat(np.arange(GRAPH.num_nodes), np.diff(GRAPH.indptr))
    edges = torch.from_numpy(np.stack((GRAPH.indices, targets)).astype(np.int64))
    return torch.from_numpy(GRAPH.features.gather(np.arange(GRAPH.num_nodes))).to(dtype), edges


def full_block(seeds: np.ndarray) -> tuple[Block, Tensor]:
    """(all edges into ``seeds``, the nodes that they come from)."""
    subgraph = NeighborSampler(csc_of(GRAPH), fanouts=(-1,)).sample(seeds, key=0)
    degrees = torch.from_numpy(GRAPH.in_degrees(subgraph.node_ids))
    block = Block(torch.from_numpy(subgraph.indptr), torch.from_numpy(subgraph.indices), degrees)
    return block, torch.from_numpy(subgraph.node_ids).long()


def same(ours: Tensor, theirs: Tensor, *inputs: Tensor) -> None:
    """Equal in outputs, and in gradients for ``inputs``."""
    tolerance = TOLERANCE[ours.dtype]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    weights = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
    found = torch.autograd.grad(ours, inputs, weights, allow_unused=True)
    expected = torch.autograd.grad(theirs, inputs, weights, allow_unused=True)
    for mine, other in zip(found, expected, strict=True):
        if other is None:
            assert mine is None
            continue
        scale = other.abs().max().clamp(min=1).item()
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance * scale)


SEEDS = np.arange(0, 120, 2)


@pytest.mark.parametrize("form", ["native", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*FUSED, *AS_WRITTEN])
def test_a_full_block_gives_what_the_class_says_on_the_whole_graph(
    name: str, dtype: torch.dtype, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "plain":
        for module in (native_aggregation, aggregation.native, convolutions):
            monkeypatch.setattr(module, "is_native", lambda _: False)
    elif native_library() is None:
        pytest.skip("no native library is installed")
    convolution = build({**FUSED, **AS_WRITTEN}[name], dtype)
    x, edges = whole_graph(dtype)
    x.requires_grad_()
    block, nodes = full_block(SEEDS)
    inputs = (x, *(parameter for parameter in convolution.parameters() if parameter.requires_grad))
    for relu in (False, True):
        theirs = convolution(x, edges)[SEEDS]
        same(convolve(convolution, x[nodes], block, relu=relu), theirs.relu() if relu else theirs, *inputs)
    assert width_of(convolution) == theirs.shape[1]


@pytest.mark.skipif(native_library() is None, reason="no native library is installed")
@pytest.mark.parametrize("name", list(FUSED))
def test_features_read_in_place_give_what_gathered_ones_do(name: str) -> None:
    convolution, (x, edges) = build(FUSED[name], torch.float32), whole_graph(torch.float32)
    assert reads_in_place(convolution, x)
    in_place = in_place_of(GRAPH)
    subgraph = NeighborSampler(csc_of(GRAPH), fanouts=(-1,)).sample(SEEDS, key=0)
    block = Block(
        torch.from_numpy(subgraph.indptr),
        torch.from_numpy(subgraph.node_ids[subgraph.indices]),
        in_place.degrees,
        in_place=in_place,
        own_rows=torch.from_numpy(SEEDS.astype(GRAPH.indices.dtype)),
    )
    ours = convolve(convolution, in_place.features, block)
    same(ours, convolution(x, edges)[SEEDS], *(p for p in convolution.parameters()))


@pytest.mark.parametrize("name", AS_WRITTEN)
def test_what_no_kernel_covers_is_told_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    convolutions._tell.cache_clear()
    convolution, (x, _) = build(AS_WRITTEN[name]), whole_graph(torch.float64)
    assert not reads_in_place(convolution, x)
    block, nodes = full_block(SEEDS)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            convolve(convolution, x[nodes], block)
    assert [type(convolution).__name__ in record.getMessage() for record in caplog.records] == [True]


def test_attention_with_dropout_runs_as_written_in_training_only() -> None:
    convolution = GATConv(12, 4, dropout=0.5)
    x, _ = whole_graph(torch.float32)
    assert not reads_in_place(convolution, x)
    assert reads_in_place(convolution.eval(), x) == (native_library() is not None)


@pytest.mark.parametrize("name", FUSED)
def test_a_copy_and_a_saved_module_are_still_the_class_of_pyg(name: str) -> None:
    convolution = build(FUSED[name])
    block, nodes = full_block(SEEDS)
    x, _ = whole_graph(torch.float64)
    before = {key: value.clone() for key, value in convolution.state_dict().items()}
    convolve(convolution, x[nodes], block)
    twin = copy.deepcopy(convolution)
    assert type(twin) is type(convolution)
    assert all(torch.equal(before[key], value) for key, value in twin.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_steps_of_appnp_over_all_nodes_give_what_the_class_says(num_steps: int, dtype: torch.dtype) -> None:
    model = APPNPNet(12, 8, num_steps, 5, alpha=0.2).to(dtype)
    x, edges = whole_graph(dtype)
    predictions = torch.randn(GRAPH.num_nodes, 5, dtype=dtype, generator=torch.Generator().manual_seed(0))
    predictions.requires_grad_()
    everybody, nodes = full_block(np.arange(GRAPH.num_nodes))
    assert torch.equal(nodes, torch.arange(GRAPH.num_nodes))
    rows = predictions
    for layer in range(num_steps):
        rows = spread(model, rows, layer=layer, block=everybody)
    same(rows, APPNP(K=num_steps, alpha=0.2)(predictions, edges), predictions)
    assert x.dtype == dtype


def test_in_place_degrees_are_those_of_the_graph() -> None:
    in_place: InPlace = in_place_of(GRAPH)
    assert in_place.degrees.tolist() == np.diff(GRAPH.indptr).tolist()
