"""GraphSAGE with weights of its own for each relation (as PyG's ``HeteroConv`` of ``SAGEConv``, or R-GCN with means).

A layer gives a node of type t:  W_t x  +  Σ over the relations r into t of  W_r · mean of its neighbours under r.

Every type has its own product W_t, so a type that no edge leads to is carried on, and a batch without a type, or
without an edge of a relation, leaves those weights without a gradient and nothing else.

In: nodes of all types in one matrix, their types, and edges with the numbers of their relations.
"""

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from workers.model_specs.sampled import TypeNames
from workers.models.blocks import Block
from workers.models.convolutions import convolve


class HeteroGraphSAGE(nn.Module):
    """One layer per hop; ReLU and dropout between layers."""

    def __init__(
        self,
        *,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        dropout: float,
        types: TypeNames,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.num_layers = in_channels, out_channels, num_layers
        self.types = types
        self.dropout = nn.Dropout(dropout)
        self.widths = (in_channels, *[hidden_channels] * (num_layers - 1), out_channels)
        pairs = list(zip(self.widths[:-1], self.widths[1:], strict=True))
        # by number: a name may hold what a module's must not
        self.convs = nn.ModuleList(
            nn.ModuleList(SAGEConv(*pair, root_weight=False, bias=False) for _ in types.relations) for pair in pairs
        )
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
        own_types = block.node_types[: block.num_targets]
        rows_of = [(own_types == number).nonzero()[:, 0] for number in range(len(self.types.nodes))]
        targets = torch.arange(block.num_targets, device=x.device).repeat_interleave(block.indptr.diff())
        out = x.new_zeros(block.num_targets, self.widths[layer + 1])
        for rows, linear in zip(rows_of, self.own[layer], strict=True):
            if len(rows):
                out.index_add_(0, rows, linear(x[rows]))
        for number, (_, _, target) in enumerate(self.types.relations):
            rows, edges = rows_of[self.types.nodes.index(target)], (block.relations == number).nonzero()[:, 0]
            if not len(edges):
                continue
            counts = torch.bincount(targets[edges], minlength=block.num_targets)[rows]
            part = Block(
                indptr=torch.cat((counts.new_zeros(1), counts.cumsum(0))).to(block.indptr.dtype),
                indices=block.indices[edges],
                degrees=block.degrees,
            )
            out.index_add_(0, rows, convolve(self.convs[layer][number], x, part))
        return out if layer == self.num_layers - 1 else out.relu()
