"""Sampled GNNs with weights of their own for each relation, as PyG's ``HeteroConv`` has them.

A layer gives a node of type t:  W_t x  +  Σ over the relations r into t of  conv_r(neighbours under r, x).

    graphsage     W_r · mean (with it R-GCN of means, Schlichtkrull et al., ESWC 2018)
    gat, gatv2    attention over the neighbours under r, one W_r for both ends of GAT; heads averaged in the last layer
    gin           an MLP_r of x and the sum

Every type has its own product W_t, so a type that no edge leads to is carried on, and a batch without a type, or
without an edge of a relation, leaves those weights without a gradient and nothing else.

In: nodes of all types in one matrix, their types, and edges with the numbers of their relations.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP, GATConv, GATv2Conv, GINConv, SAGEConv

from workers.model_specs.sampled import SampledFields, TypeNames
from workers.models.blocks import Block
from workers.models.convolutions import convolve


class HeteroGNN(nn.Module):
    """One layer per hop; ReLU and dropout between layers."""

    def __init__(
        self,
        name: str,
        *,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float,
        types: TypeNames,
        num_heads: int = 1,
    ) -> None:
        """Layers of the convolution ``name``."""
        super().__init__()
        self.in_channels, self.out_channels, self.num_layers = in_channels, out_channels, num_layers
        self.types = types
        self.dropout = nn.Dropout(dropout)
        self.widths = (in_channels, *[hidden_channels] * (num_layers - 1), out_channels)
        self._reads_own = name != "graphsage"
        pairs = [*pairwise(self.widths)]
        builds = [
            partial(_CONVOLUTIONS[name], *pair, num_heads=num_heads, is_last=layer == num_layers - 1)
            for layer, pair in enumerate(pairs)
        ]
        # by number: a name may hold what a module's must not
        self.convs = nn.ModuleList(nn.ModuleList(build() for _ in types.relations) for build in builds)
        self.own = nn.ModuleList(nn.ModuleList(nn.Linear(*pair) for _ in types.nodes) for pair in pairs)

    def forward(self, x: Tensor, edge_index: Tensor, node_type: Tensor, edge_type: Tensor) -> Tensor:
        """Outputs [N, C] for features [N, F], edges [2, E], types of nodes [N] and relations of edges [E]."""
        order = edge_index[1].argsort(stable=True)
        counts = torch.bincount(edge_index[1], minlength=len(x))
        block = Block(
            indptr=torch.cat((counts.new_zeros(1), counts.cumsum(0))).int(),
            indices=edge_index[0, order].int(),
            degrees=counts,
            node_types=node_type,
            relations=edge_type[order],
        )
        for layer in range(self.num_layers):
            x = self.spread(x, layer=layer, block=block)
            if layer < self.num_layers - 1:
                x = self.dropout(x)
        return x

    def spread(self, x: Tensor, *, layer: int, block: Block) -> Tensor:
        """One layer: sources ``x`` [S, F_in] of ``block``, which knows types and relations → targets [T, F_out]."""
        assert block.relations is not None
        assert block.node_types is not None
        sources_of = [(block.node_types == number).nonzero()[:, 0] for number in range(len(self.types.nodes))]
        targets_of = [rows[rows < block.num_targets] for rows in sources_of]
        targets = torch.arange(block.num_targets, device=x.device).repeat_interleave(block.indptr.diff())
        out = x.new_zeros(block.num_targets, self.widths[layer + 1])
        for rows, linear in zip(targets_of, self.own[layer], strict=True):
            if len(rows):
                out.index_add_(0, rows, linear(x[rows]))
        for number, (source, _, target) in enumerate(self.types.relations):
            rows, edges = targets_of[self.types.nodes.index(target)], (block.relations == number).nonzero()[:, 0]
            convolution = self.convs[layer][number]
            if not len(rows) or not (len(edges) or isinstance(convolution, GINConv)):  # without neighbours: zeros
                continue
            counts = torch.bincount(targets[edges], minlength=block.num_targets)[rows]
            part, inputs = self._part(block, edges=edges, counts=counts), x
            if self._reads_own:
                of_source = sources_of[self.types.nodes.index(source)]
                part, inputs = _targets_first(part, x, targets=rows, sources=of_source)
            out.index_add_(0, rows, convolve(convolution, inputs, part))
        return out if layer == self.num_layers - 1 else out.relu()

    def _part(self, block: Block, *, edges: Tensor, counts: Tensor) -> Block:
        """The ``edges`` of one relation, ``counts`` of them into each of its targets."""
        weights = block.edge_weights if self._reads_own else None  # a mean over the sample needs none
        return Block(
            indptr=torch.cat((counts.new_zeros(1), counts.cumsum(0))).to(block.indptr.dtype),
            indices=block.indices[edges],
            degrees=block.degrees,
            edge_weights=None if weights is None else weights[edges],
        )


def _targets_first(part: Block, x: Tensor, *, targets: Tensor, sources: Tensor) -> tuple[Block, Tensor]:
    """``part`` with numbers of its own: rows of ``x`` of its ``targets``, then of all ``sources`` it may have."""
    place = torch.empty(part.num_sources, dtype=part.indices.dtype, device=x.device)
    place[sources] = torch.arange(len(sources), dtype=place.dtype, device=x.device) + len(targets)
    counts = part.indptr.diff().to(part.degrees.dtype)
    degrees = torch.cat((counts, counts.new_zeros(len(sources))))  # under this relation; weights hold what is not here
    moved = Block(
        indptr=part.indptr, indices=place[part.indices.long()], degrees=degrees, edge_weights=part.edge_weights
    )
    return moved, torch.cat((x[targets], x[sources]))


def _sage(width_in: int, width_out: int, **_: Any) -> nn.Module:
    return SAGEConv(width_in, width_out, root_weight=False, bias=False)


def _attention(kind: type[nn.Module], width_in: int, width_out: int, *, num_heads: int, is_last: bool) -> nn.Module:
    channels = width_out if is_last else width_out // num_heads
    return kind(width_in, channels, heads=num_heads, concat=not is_last, add_self_loops=False, bias=False)


def _gin(width_in: int, width_out: int, **_: Any) -> nn.Module:
    return GINConv(MLP([width_in, width_out, width_out], norm=None))


_CONVOLUTIONS: dict[str, Callable[..., nn.Module]] = {
    "graphsage": _sage,
    "gat": partial(_attention, GATConv),
    "gatv2": partial(_attention, GATv2Conv),
    "gin": _gin,
}


def build_hetero_gnn(spec: SampledFields, *, num_features: int, num_classes: int) -> HeteroGNN:
    """The model of ``spec``, whose types are filled in."""
    assert spec.types is not None, "types are filled in from the data"
    return HeteroGNN(
        spec.name,
        in_channels=num_features,
        hidden_channels=spec.hidden_size,
        out_channels=num_classes,
        num_layers=spec.num_layers,
        dropout=spec.dropout,
        types=spec.types,
        num_heads=getattr(spec, "num_heads", 1),
    )
