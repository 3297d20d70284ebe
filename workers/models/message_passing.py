"""Message passing along the edges into own rows: rows of neighbours are asked of ``neighbours``, sums are local.

Shapes: n own rows, m = n + halo rows, e edges, d hidden size.
"""

import torch
from torch import Tensor, nn

from workers.model_specs.transformers import MessagePassing
from workers.models.graph_batch import GraphBatch
from workers.ops.exchanges import LocalNeighbours, NeighbourExchange
from workers.ops.segment import segment_sum, sum_over_edges


class GCN(nn.Module):
    """D^-1/2 (A + I) D^-1/2 x W + b (Kipf and Welling, ICLR 2017, equation 2), D = degree + 1. No edge types."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(hidden_size, hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        nn.init.xavier_uniform_(self.project.weight)
        self.neighbours: NeighbourExchange = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]; a row is scaled by its own degree before it travels."""
        scale = (batch.degree + 1).to(h.dtype).rsqrt().unsqueeze(1)
        x = self.project(h) * scale
        sources = self.neighbours.extend(x, halo=batch.edges.halo)
        return (sum_over_edges(sources, edges=batch.edges) + x) * scale + self.bias


class GINE(nn.Module):
    """MLP((1 + eps) x_i + sum over edges relu(x_j + type)) (Hu et al., ICLR 2020), eps learned.

    Without edge types relu(x_j) is summed and no message stands for itself; with them all e messages do.
    """

    def __init__(self, hidden_size: int, *, edge_types: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.types = nn.Embedding(edge_types, hidden_size) if edge_types else None
        self.mlp = nn.Sequential(nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, hidden_size))
        self.neighbours: NeighbourExchange = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        edges = batch.edges
        sources = self.neighbours.extend(h, halo=edges.halo)
        if self.types is None:
            messages = sum_over_edges(sources.relu(), edges=edges)
        else:
            types = torch.zeros_like(edges.sources) if edges.types is None else edges.types
            messages = segment_sum((sources[edges.sources] + self.types(types)).relu(), indptr=edges.indptr)
        return self.mlp((1 + self.eps) * h + messages)


def build_message_passing(name: MessagePassing, hidden_size: int, *, edge_types: int) -> nn.Module:
    """The convolution of this name; called ``(h, batch=batch)``."""
    return GCN(hidden_size) if name == "gcn" else GINE(hidden_size, edge_types=edge_types)
