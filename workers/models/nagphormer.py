"""NAGphormer: a node is the short sequence of what it hears from 0, 1, … K hops away; nodes never meet again.

    tokens x_k = (A_norm^k X) W,   k = 0 … K
    t' = t + MHA(LN(t));   t'' = t' + FFN(LN(t'))            over the K + 1 tokens of each node
    out = t_0 + sum over k >= 1 of softmax_k([t_0 || t_k] . a) t_k,   then the head

Source: Chen et al., "NAGphormer: A Tokenized Graph Transformer for Node Classification in Large Graphs", ICLR 2023,
section 3. Hop features are made before training (``workers.data.graph_encodings.hops``), so shards exchange
nothing at all. Left out: the structural encoding by eigenvectors, concatenated there to the features.

Units: ``features``, ``block.i``, ``head`` (with the readout). Rows carry their tokens one after the other. Shapes: n
rows here, F features, d hidden size, T = K + 1 tokens, H heads.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from workers.model_specs.transformers import NAGphormerSpec, Pooling
from workers.models.graph_batch import GraphBatch
from workers.models.layers import FeedForward, Head
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import CounterDropout


class HopFeatures(nn.Module):
    """Unit ``features``: every token projected alike. What is dropped of a feature is dropped token by token."""

    def __init__(self, spec: NAGphormerSpec, *, num_features: int) -> None:
        super().__init__()
        self.dropout = CounterDropout(spec.input_dropout, site=0)
        self.project = nn.Linear(num_features, spec.hidden_size)

    def forward(self, _: None, *, batch: GraphBatch) -> Tensor:
        """[n, T d], the beginning of the hidden state."""
        hops = self.dropout(batch.hops.flatten(1), node_ids=batch.node_ids, draw=batch.draw)
        return self.project(hops.view_as(batch.hops)).flatten(1)


class Block(nn.Module):
    """One transformer layer over the tokens of each row."""

    def __init__(self, spec: NAGphormerSpec, *, index: int) -> None:
        super().__init__()
        d = spec.hidden_size
        self.num_tokens, self.num_heads = spec.num_hops + 1, spec.num_heads
        self.attention_norm, self.ffn_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.value, self.out = (nn.Linear(d, d) for _ in range(3))
        self.key = nn.Linear(d, d, bias=False)
        self.ffn = FeedForward(d, ratio=spec.ffn_ratio, activation=nn.GELU)
        self.attention_dropout = CounterDropout(spec.dropout, site=1 + 2 * index)
        self.ffn_dropout = CounterDropout(spec.dropout, site=2 + 2 * index)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, T d] from ``h`` [n, T d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        h = h + self.attention_dropout(self._attend(self.attention_norm(self._tokens(h))).flatten(1), **key)
        return h + self.ffn_dropout(self.ffn(self.ffn_norm(self._tokens(h))).flatten(1), **key)

    def _attend(self, tokens: Tensor) -> Tensor:
        """[n, T, d] from ``tokens`` [n, T, d]."""
        heads = (self.num_heads, -1)
        q, k, v = (linear(tokens).unflatten(2, heads).transpose(1, 2) for linear in (self.query, self.key, self.value))
        return self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def _tokens(self, h: Tensor) -> Tensor:
        return h.unflatten(1, (self.num_tokens, -1))


class ReadoutHead(nn.Module):
    """Unit ``head``: the tokens of a row weighed against its first one, then the head of all models."""

    def __init__(self, spec: NAGphormerSpec, *, num_classes: int, pooling: Pooling | None) -> None:
        super().__init__()
        self.num_tokens = spec.num_hops + 1
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.weigh = nn.Linear(2 * spec.hidden_size, 1, bias=False)
        self.predict = Head(spec.hidden_size, num_classes, pooling=pooling)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, C] or [g, C] from ``h`` [n, T d]."""
        own, far = self.norm(h.unflatten(1, (self.num_tokens, -1))).split([1, self.num_tokens - 1], dim=1)
        weights = self.weigh(torch.cat([own.expand_as(far), far], dim=2)).softmax(dim=1)  # [n, T - 1, 1]
        return self.predict((own + (weights * far).sum(dim=1, keepdim=True)).squeeze(1), batch=batch)


class NAGphormer(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: NAGphormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = HopFeatures(spec, num_features=num_features)
        self.blocks = nn.ModuleList(Block(spec, index=index) for index in range(spec.num_layers))
        self.head = ReadoutHead(spec, num_classes=num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        return self.named(self.features, *self.blocks, self.head)
