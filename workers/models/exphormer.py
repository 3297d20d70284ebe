"""Exphormer: GraphGPS whose attention runs along the edges of the graph, of an expander, and to global nodes.

    attention: softmax over the edges j -> i of all three kinds of (q_i . k_j / sqrt(d_h) + kind[edge]), times v_j
    global node c of a graph: u_c = sum over its nodes of softmax_j(w_c . k_j / sqrt(d_h)) v_j; its key and value are
    projections of u_c

Source: Shirzad et al., "Exphormer: Sparse Transformers for Graphs", ICML 2023, sections 3.1 and 3.2. Two things
differ: an edge's kind enters as a learned number per head added to its score (the paper multiplies keys by an edge
feature), and global nodes are made anew in every block from a learned query w_c, as only rows of nodes pass from unit
to unit. The paper's global nodes hear all nodes in one block and are heard in the next; here both happen in one block.

What shards tell each other: keys and values of the halo of both kinds of edges, and sums of a few numbers per global
node. Units: as GraphGPS without ``distance``. Shapes: n rows here, m = n + halo rows, g graphs, G global nodes per
graph, d hidden size, H heads, d_h head size.
"""

import math

import torch
from torch import Tensor, nn

from workers.model_specs.transformers import ExphormerSpec
from workers.models.graph_batch import GraphBatch
from workers.models.graphgps import Block, build_positions
from workers.models.layers import Features, Head
from workers.models.units import GraphTransformer
from workers.ops.edge_attention import edge_attention
from workers.ops.exchanges import LocalNeighbours, LocalSums, NeighbourExchange, SumExchange
from workers.ops.segment import segment_sum


class SparseAttention(nn.Module):
    """Attention along ``batch.wide_edges``."""

    def __init__(self, spec: ExphormerSpec) -> None:
        super().__init__()
        d = spec.hidden_size
        self.num_heads = spec.num_heads
        self.query, self.value, self.out = (nn.Linear(d, d) for _ in range(3))
        self.key = nn.Linear(d, d, bias=False)
        self.kinds = nn.Parameter(torch.zeros(max(1, spec.edge_types) + 2, spec.num_heads))
        self.globals = GlobalNodes(spec) if spec.num_global else None
        self.neighbours: NeighbourExchange = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        wide = batch.wide_edges
        k, v = (linear(h).unflatten(1, (self.num_heads, -1)) for linear in (self.key, self.value))
        pending = self.neighbours.begin(torch.stack((k, v), dim=1), halo=wide.halo)
        q = self.query(h).unflatten(1, (self.num_heads, -1))  # while keys and values travel
        parts = [] if self.globals is None else [self.globals(k, v=v, batch=batch)]
        kv = torch.cat([pending.rows(), *parts])  # [m, 2, H, d_h]
        bias = self.kinds.index_select(0, wide.edges.types)
        return self.out(edge_attention(q, k=kv[:, 0], v=kv[:, 1], edges=wide.edges, bias=bias).flatten(1))


class GlobalNodes(nn.Module):
    """Keys and values of the global nodes of every graph, the same on every shard."""

    def __init__(self, spec: ExphormerSpec) -> None:
        super().__init__()
        shape = (spec.num_global, spec.num_heads, spec.hidden_size // spec.num_heads)
        self.query = nn.Parameter(torch.randn(shape))
        self.key_value = nn.Linear(spec.hidden_size, 2 * spec.hidden_size)
        self.sums: SumExchange = LocalSums()

    def forward(self, k: Tensor, *, v: Tensor, batch: GraphBatch) -> Tensor:
        """[g G, 2, H, d_h] from the keys and values [n, H, d_h] of own rows."""
        scores = torch.einsum("nhd,chd->nch", k, self.query) / math.sqrt(k.shape[2])
        weights = (scores - self._largest(scores.detach(), batch)[batch.graph_of_row]).exp()  # [n, G, H]
        parts = torch.cat([weights.unsqueeze(3), weights.unsqueeze(3) * v.unsqueeze(1)], dim=3)
        total = self.sums.sum(segment_sum(parts, indptr=batch.graph_indptr))  # [g, G, H, 1 + d_h]
        heard = total[..., 1:] / total[..., :1]
        return self.key_value(heard.flatten(2).flatten(0, 1)).unflatten(1, (2, *k.shape[1:]))

    def _largest(self, scores: Tensor, batch: GraphBatch) -> Tensor:
        """[g, G, H], over all shards: each puts its own into a place of its own, and the places are summed."""
        layout = batch.layout
        places = scores.new_zeros(layout.num_shards, layout.num_graphs, *scores.shape[1:])
        own = places[layout.shard].fill_(-math.inf)
        own.scatter_reduce_(0, batch.graph_of_row[:, None, None].expand_as(scores), scores, "amax")
        return self.sums.sum(places).amax(dim=0)


class Exphormer(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: ExphormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(num_features, spec.hidden_size, dropout=spec.input_dropout)
        self.positions = nn.ModuleList(build_positions(spec))
        self.blocks = nn.ModuleList(
            Block(spec, index=index, attention=SparseAttention(spec)) for index in range(spec.num_layers)
        )
        self.head = Head(spec.hidden_size, num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        return self.named(self.features, *self.positions, *self.blocks, self.head)
