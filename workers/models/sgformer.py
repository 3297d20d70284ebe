"""SGFormer: one layer of linear attention to all nodes beside a GCN, added with fixed weights.

    z = dropout(relu(LN(x W)))
    attended = dropout(LN((LinearAttention(z) + z) / 2))         one layer, O(N)
    passed = relu(GCN_l(dropout(passed))), from z, l = 1 … L
    out = (w passed + (1 - w) attended) W_out

Source: Wu et al., "SGFormer: Simplifying and Empowering Transformers for Large-Graph Representations", NeurIPS 2023,
sections 3.1 and 3.2. Both branches start from one projection of the features, as in the paper's text. Heads lie side by
side; with one head, the paper's choice, that is its formula. Attention is within each graph: one sum of H d_h^2 + d + 2
numbers per graph, whatever its size. Limit: graphs of a micro-batch attend one after the other.

Units: ``features``, ``block.0`` (both branches), ``head``. Shapes: n rows here, d hidden size, H heads.
"""

import torch
from torch import Tensor, nn

from workers.model_specs.transformers import SGFormerSpec
from workers.models.graph_batch import GraphBatch
from workers.models.layers import Features, Head
from workers.models.message_passing import GCN
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import CounterDropout
from workers.ops.exchanges import LocalSums, SumExchange
from workers.ops.linear_attention import linear_attention


class GlobalAttention(nn.Module):
    """Linear attention of every row to all rows of its graph."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.sums: SumExchange = LocalSums()

    def forward(self, z: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``z`` [n, d]."""
        layout, sizes = batch.layout, batch.graph_sizes.tolist()
        q, k, v = (linear(z).unflatten(1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value))
        parts = [q[:0]]
        for graph, num_nodes in enumerate(sizes):
            rows = layout.rows(layout.shard, graph)
            parts.append(linear_attention(q[rows], k=k[rows], v=v[rows], sums=self.sums, num_rows=num_nodes))
        return torch.cat(parts).flatten(1)


class Block(nn.Module):
    """Both branches and their sum."""

    def __init__(self, spec: SGFormerSpec) -> None:
        super().__init__()
        self.graph_weight = spec.graph_weight
        self.input_norm = nn.LayerNorm(spec.hidden_size)
        self.input_dropout = CounterDropout(spec.dropout, site=1)
        self.attention = GlobalAttention(spec.hidden_size, spec.num_heads)
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention_dropout = CounterDropout(spec.dropout, site=2)
        self.convolutions = nn.ModuleList(GCN(spec.hidden_size) for _ in range(spec.num_layers))
        self.dropouts = nn.ModuleList(CounterDropout(spec.dropout, site=3 + index) for index in range(spec.num_layers))

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        z = self.input_dropout(self.input_norm(h).relu(), **key)
        attended = self.attention_norm((self.attention(z, batch=batch) + z) / 2)
        attended = self.attention_dropout(attended, **key)
        passed = z
        for convolution, dropout in zip(self.convolutions, self.dropouts, strict=True):
            passed = convolution(dropout(passed, **key), batch=batch).relu()
        return self.graph_weight * passed + (1 - self.graph_weight) * attended


class SGFormer(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: SGFormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(num_features, spec.hidden_size, dropout=spec.input_dropout)
        self.block = Block(spec)
        self.head = Head(spec.hidden_size, num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        return self.named(self.features, self.block, self.head)
