"""Message-passing models of PyG, and how to run them on sampled blocks without wasted rows.

``build_sampled_gnn`` gives a plain module that anyone can call on a whole graph: PyG's own models, or its convolutions
stacked as PyG does. ``forward_blocks`` runs the same module on a sampled subgraph and computes only what the seeds need
(``workers.models.blocks``); each layer runs as ``workers.models.convolutions`` says. (PyG's own
``num_sampled_nodes_per_hop`` trims from the second layer on: it computes the outermost hop as targets and throws it
away, and ``GCNConv`` then loses the degrees of what was cut off.)

What the outputs for the seeds equal: for ``GraphSAGE`` and the attention models those of
``model(x, edge_index)[:num_seeds]`` on the same subgraph. Sums over neighbours and normalisation by degrees would be
other functions on the subgraph than on the graph; here models know the degrees of the graph and weight each sampled sum
up to all neighbours. A layer's aggregation is then in expectation that of the whole graph (attention apart), and with
all neighbours the outputs are exactly those of ``model(x, edge_index)`` there.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.nn import ARMAConv, GATConv, MessagePassing, PNAConv, SGConv, TAGConv
from torch_geometric.nn.models import GAT, GCN, GIN, PNA, GraphSAGE
from torch_geometric.nn.models.basic_gnn import BasicGNN

from workers.model_specs.sampled import SampledFields
from workers.models.appnp import APPNPNet, predict_rows, spread
from workers.models.blocks import Block, InPlace, SampledEdges
from workers.models.convolutions import convolve, reads_in_place, width_of
from workers.models.hetero import HeteroGNN, build_hetero_gnn
from workers.models.node_table import NodeTable
from workers.ops.counter_dropout import drop
from workers.ops.native_aggregation import is_native
from workers.ops.neighbours import SparseRows

# How the first layer meets the features: as rows that were gathered for it, or in the matrix of all nodes, by the
# sources of edges (then the outermost nodes need no numbers of their own) or by the nodes of the subgraph.
Reading = Literal["gathered", "edges", "nodes"]


class _Stack(BasicGNN):
    """PyG's frame (layers, activation, norm, dropout) around a convolution that it has no model of."""

    supports_edge_weight = True
    supports_edge_attr = False
    convolution: type[MessagePassing]

    def init_conv(self, in_channels: int, out_channels: int, **options: Any) -> MessagePassing:
        """One layer."""
        return self.convolution(in_channels, out_channels, **options)


class SGC(_Stack):
    """SGConv of one step per layer (Wu et al., ICML 2019)."""

    convolution = SGConv


class TAG(_Stack):
    """TAGConv of one step per layer (Du et al., 2017)."""

    convolution = TAGConv


class ARMA(_Stack):
    """ARMAConv of one step per layer (Bianchi et al., TPAMI 2021)."""

    convolution = ARMAConv


def build_sampled_gnn(spec: SampledFields, *, num_features: int, num_classes: int) -> nn.Module:
    """The model that ``spec`` names, one layer per fanout; ReLU and dropout between layers.

    Where rows are learned for each node, ``x`` of the module has them beside the features (its ``node_table``).
    """
    if spec.hetero:
        return build_hetero_gnn(spec, num_features=num_features, num_classes=num_classes)
    kind, options = _CLASSES[spec.name]
    options = {name: getattr(spec, value) if isinstance(value, str) else value for name, value in options.items()}
    model = kind(
        in_channels=num_features + spec.node_embedding_size,
        hidden_channels=spec.hidden_size,
        num_layers=spec.num_layers,
        out_channels=num_classes,
        dropout=spec.dropout,
        **options,
    )
    for convolution in getattr(model, "convs", ()):
        if isinstance(convolution, MessagePassing) and hasattr(convolution, "heads"):
            convolution.dropout = 0.0  # rows are dropped, by counters; weights of attention are not
    if spec.node_embedding_size:
        model.node_table = NodeTable(spec.node_embedding_size)
    return model


# name -> class, its options: values, or (as text) fields of the spec
_CLASSES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "graphsage": (GraphSAGE, {}),
    "gcn": (GCN, {}),
    "gin": (GIN, {}),
    "gat": (GAT, {"heads": "num_heads"}),
    "gatv2": (GAT, {"heads": "num_heads", "v2": True}),
    "appnp": (APPNPNet, {"alpha": "teleport"}),
    "sgc": (SGC, {"K": 1}),
    "tag": (TAG, {"K": 1}),
    "arma": (ARMA, {}),
    "pna": (
        PNA,
        {
            "aggregators": ["mean", "min", "max", "std"],
            "scalers": ["identity", "amplification", "attenuation"],
            "deg": torch.tensor([0, 1]),  # until ``learn_degrees``
        },
    ),
}


def learn_degrees(model: nn.Module, degrees: Tensor) -> None:
    """Tell a fresh ``model`` the in-degrees [N] of the graph that it is to be trained on: PNA scales by their means.

    They are buffers, so an export holds them. Any other model needs none.
    """
    for convolution in getattr(model, "convs", ()):
        if isinstance(convolution, PNAConv):
            scaler = convolution.aggr_module
            scaler.avg_deg_lin.fill_(degrees.double().mean().clamp(min=1.0))
            scaler.avg_deg_log.fill_(degrees.double().log1p().mean().clamp(min=0.5))


def reading_of(model: nn.Module, features: Tensor | SparseRows) -> Reading:
    """How the first layer of ``model`` is best given the ``features`` of all nodes, in its dtype and on the CPU."""
    if isinstance(model, HeteroGNN):
        return "gathered"
    if isinstance(model, APPNPNet):
        return "nodes" if isinstance(features, Tensor) and is_native(features) else "gathered"
    return "edges" if reads_in_place(model.convs[0], features) else "gathered"


def width_after(model: nn.Module, layer: int) -> int:
    """Numbers in a row that ``layer`` makes."""
    if isinstance(model, HeteroGNN):
        return model.widths[layer + 1]
    if isinstance(model, APPNPNet):
        return model.out_channels * (1 + (layer < model.num_layers - 1))
    return width_of(model.convs[layer])


def edge_bytes_of(model: nn.Module, layer: int, *, dtype: torch.dtype) -> int:
    """What ``layer`` holds for every edge of a block, beside rows: of attention, weights and slopes, or PyG's rows."""
    is_hetero = isinstance(model, HeteroGNN)
    cut_bytes = 24 if is_hetero else 0  # a target and its place (int64), a source and a relation, of one relation
    convolution = None if isinstance(model, APPNPNet) else model.convs[layer]
    convolution = convolution[0] if is_hetero else convolution
    if isinstance(convolution, PNAConv):
        return 6 * convolution.in_channels * dtype.itemsize
    if not hasattr(convolution, "heads"):
        return cut_bytes
    numbers = 2 if type(convolution) is GATConv else 5 * width_after(model, layer)
    return cut_bytes + numbers * convolution.heads * dtype.itemsize


def forward_blocks(model: nn.Module, x: Tensor | InPlace, edges: SampledEdges, *, draw: int = 0) -> Tensor:
    """Outputs [num_seeds, C] of ``model`` on a sampled subgraph with features ``x`` [n, F], or those of all nodes.

    ``edges`` have as many hops as the model has layers. Where they have ``source_ids``, ``x`` is in place.

    In training the hidden state of a node is dropped by its number in the graph, the layer and ``draw``, at the rate of
    the model's own dropout: whoever computes the node in this draw drops the same of it.
    """
    if not edges.num_nodes(0):
        return edges.degrees.new_zeros(0, model.out_channels, dtype=next(model.parameters()).dtype)
    if isinstance(model, APPNPNet):
        x = predict_rows(model, x, node_ids=edges.node_ids, draw=draw)
    for layer, hop in enumerate(reversed(range(model.num_layers))):  # hop of the outermost targets
        in_place = x if isinstance(x, InPlace) else None
        block = edges.block(hop, in_place=in_place)
        x = apply_layer(model, in_place.features if in_place else x, layer=layer, block=block)
        if model.training and hop and not isinstance(model, APPNPNet):
            x = drop(x, p=model.dropout.p, site=layer, node_ids=edges.node_ids[: len(x)].long(), draw=draw)
    return x


def apply_layer(model: nn.Module, x: Tensor | SparseRows, *, layer: int, block: Block) -> Tensor:
    """One layer of ``model``: sources ``x`` [num_sources, F_in] → targets [num_targets, F_out]; nothing is dropped."""
    if isinstance(model, APPNPNet):
        return spread(model, x, layer=layer, block=block)
    if isinstance(model, HeteroGNN):
        return model.spread(x, layer=layer, block=block)
    is_last = layer == len(model.convs) - 1
    norm = model.norms[layer]
    relu = not is_last and isinstance(model.act, nn.ReLU) and isinstance(norm, nn.Identity)
    x = convolve(model.convs[layer], x, block, relu=relu)
    return x if is_last or relu else model.act(norm(x))


def enter(model: nn.Module, x: Tensor) -> Tensor:
    """What the first layer reads of features ``x`` [n, F]: themselves, or what the model predicts from them alone."""
    return predict_rows(model, x) if isinstance(model, APPNPNet) else x
