"""GT, the graph transformer of attention along edges: each node attends to its neighbours only.

    h' = Norm(h + dropout(O [sum over edges j -> i of softmax_j(q_i . k_j / sqrt(d_h)) v_j over heads]))
    h'' = Norm(h' + dropout(FFN(h')))

Source: Dwivedi and Bresson, "A Generalization of Transformer Networks to Graphs", 2020, sections 2.1 and 2.2, without
edge features. Positions are Laplacian eigenvectors, added after a projection. A node without neighbours hears nothing
and keeps its own state.

Units: ``features``, ``laplacian``, ``block.i``, ``head``. Shapes: n rows here, m = n + halo rows, d hidden size,
H heads.
"""

import torch
from torch import Tensor, nn

from workers.model_specs.transformers import GTSpec
from workers.models.graph_batch import GraphBatch
from workers.models.layers import Features, FeedForward, Head, Laplacian, build_norm
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import CounterDropout
from workers.ops.edge_attention import edge_attention
from workers.ops.exchanges import LocalNeighbours, NeighbourExchange


class NeighbourAttention(nn.Module):
    """Multi-head attention along the edges; keys and values of neighbours travel as one tensor."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(3))
        self.out = nn.Linear(hidden_size, hidden_size)
        self.neighbours: NeighbourExchange = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        k, v = (linear(h).unflatten(1, (self.num_heads, -1)) for linear in (self.key, self.value))
        pending = self.neighbours.begin(torch.stack((k, v), dim=1), halo=batch.edges.halo)
        q = self.query(h).unflatten(1, (self.num_heads, -1))  # while keys and values travel
        kv = pending.rows()  # [m, 2, H, d_h]
        return self.out(edge_attention(q, k=kv[:, 0], v=kv[:, 1], edges=batch.edges).flatten(1))


class Block(nn.Module):
    """One layer; see the module."""

    def __init__(self, spec: GTSpec, *, index: int) -> None:
        super().__init__()
        self.attention = NeighbourAttention(spec.hidden_size, spec.num_heads)
        self.attention_norm = build_norm(spec.norm, spec.hidden_size)
        self.attention_dropout = CounterDropout(spec.dropout, site=1 + 2 * index)
        self.ffn = FeedForward(spec.hidden_size, ratio=spec.ffn_ratio)
        self.ffn_norm = build_norm(spec.norm, spec.hidden_size)
        self.ffn_dropout = CounterDropout(spec.dropout, site=2 + 2 * index)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        h = self.attention_norm(h + self.attention_dropout(self.attention(h, batch=batch), **key))
        return self.ffn_norm(h + self.ffn_dropout(self.ffn(h), **key))


class GT(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: GTSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(num_features, spec.hidden_size, dropout=spec.input_dropout)
        self.laplacian = Laplacian(spec.laplacian_size, spec.hidden_size) if spec.laplacian_size else None
        self.blocks = nn.ModuleList(Block(spec, index=index) for index in range(spec.num_layers))
        self.head = Head(spec.hidden_size, num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        positions = () if self.laplacian is None else (self.laplacian,)
        return self.named(self.features, *positions, *self.blocks, self.head)
