"""APPNP: predict each node from its features, then spread predictions by a personalised PageRank of few steps.

Gasteiger, Bojchevski, Günnemann, ICLR 2019, section 3: ``Z⁰ = MLP(x)``, ``Zᵏ⁺¹ = (1 − α) Â Zᵏ + α Z⁰``. One step per
hop. On blocks, a row that goes from step to step is ``[Zᵏ | Z⁰]``; the first step reads ``Z⁰`` alone, the last one
gives ``Zᴷ`` alone.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP

from workers.models.blocks import Block, InPlace
from workers.ops.aggregation import linear, sum_neighbours
from workers.ops.counter_dropout import drop
from workers.ops.neighbours import Neighbours


class APPNPNet(nn.Module):
    """Two linear layers and PyG's ``APPNP``: a plain module that anyone can call on a whole graph."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        dropout: float = 0.0,
        alpha: float = 0.1,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.num_layers = in_channels, out_channels, num_layers
        self.lins = nn.ModuleList([nn.Linear(in_channels, hidden_channels), nn.Linear(hidden_channels, out_channels)])
        self.dropout = nn.Dropout(dropout)
        self.propagation = APPNP(K=num_layers, alpha=alpha)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Predictions [N, C] from features [N, F] and edges [2, E]."""
        hidden = self.dropout(self.lins[0](x).relu())
        return self.propagation(self.lins[1](hidden), edge_index)


def predict_rows(model: APPNPNet, x: Tensor | InPlace, *, node_ids: Tensor | None = None, draw: int = 0) -> Tensor:
    """``Z⁰`` [n, C] of rows ``x`` [n, F], or of the nodes ``node_ids`` [n] in place. In training hidden numbers are
    dropped by node and ``draw``.
    """
    first, second = model.lins
    features, rows = (x.features, node_ids) if isinstance(x, InPlace) else (x, None)
    assert isinstance(features, Tensor)
    hidden = linear(features, first.weight, first.bias, relu=True, rows=rows)
    if model.training and model.dropout.p:
        assert node_ids is not None
        hidden = drop(hidden, p=model.dropout.p, site=0, node_ids=node_ids.long(), draw=draw)
    return linear(hidden, second.weight, second.bias)


def spread(model: APPNPNet, x: Tensor, *, layer: int, block: Block) -> Tensor:
    """Step ``layer`` + 1: rows of the sources → rows of the targets, both as the module says."""
    alpha, width = model.propagation.alpha, model.out_channels
    edges, own = block.normalized(x.dtype, loops=1.0), x[: block.num_targets]
    assert edges.target_scale is not None
    assert edges.own_scale is not None
    step = Neighbours(
        edges.indptr,
        edges.sources,
        edges.num_sources,
        weights=edges.weights,
        source_scale=edges.source_scale,
        target_scale=edges.target_scale * (1 - alpha),
        own_scale=edges.own_scale * (1 - alpha) + (0.0 if layer else alpha),
    )
    out = sum_neighbours(x[:, :width], neighbours=step)
    if layer:
        out = out + alpha * own[:, width:]
    return out if layer == model.num_layers - 1 else torch.cat((out, own[:, -width:]), dim=1)
