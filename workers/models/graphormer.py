"""Graphormer for node classification: a pre-norm transformer over the nodes, with degree embedding and distance bias.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?", NeurIPS 2021, section 3.1. One
distance table is shared by all layers, as there. Left out: edge encodings (the data sets have no edge features) and the
virtual node (nodes are classified, not graphs).

In comes a ``GraphBatch`` (some rows of some graphs), out go logits for the same rows. The module knows nothing of
ranks: which keys a row attends to is asked of ``attention.exchange``, which parallelism may swap. Units: ``features``,
``degree``, ``distance``, ``block.i``, ``head``; every block refers to the module of ``distance``, so its table is one
parameter. Attention probabilities are not dropped, features and hidden states are.

Shapes: n rows here, F features, d hidden size, H heads, C classes, B = max_distance + 2 buckets.
"""

import torch
from torch import Tensor, nn

from workers.model_specs import GraphormerSpec
from workers.models.graph_batch import GraphBatch
from workers.models.units import GraphTransformer
from workers.ops.biased_attention import Exchange, LocalExchange, biased_attention
from workers.ops.counter_dropout import CounterDropout

# Nodes with more neighbours share the last embedding; few nodes have so many, and theirs would hardly be trained.
MAX_DEGREE = 64
# First bias per hop, and of the far bucket. Most pairs are far: with all buckets at zero a node of a graph of thousands
# would start with the average of the whole graph and learn to look near slowly, if at all. At -10 it takes 20,000 far
# nodes to outweigh the node itself; one unit per hop balances a hop's nodes against the fewer ones of the hop before.
# On Cora -8 and -10 were alike (78 % test), within the noise of seeds.
_BIAS_PER_HOP = -1.0
_FAR_BIAS = -10.0


class Features(nn.Module):
    """Features into the hidden state: normalised, so that it does not matter how a data set scales them."""

    def __init__(self, spec: GraphormerSpec, *, num_features: int) -> None:
        super().__init__()
        self.input_dropout = CounterDropout(spec.input_dropout, site=0)
        self.project = nn.Linear(num_features, spec.hidden_size, bias=False)  # the degree embedding acts as one
        self.norm = nn.LayerNorm(spec.hidden_size)

    def forward(self, _: None, *, batch: GraphBatch) -> Tensor:
        """[n, d], the beginning of the hidden state."""
        return self.norm(self.project(self.input_dropout(batch.x, node_ids=batch.node_ids, draw=batch.draw)))


class Degree(nn.Module):
    """Adds a learned vector per degree (section 3.1.1), then drops of the sum."""

    def __init__(self, spec: GraphormerSpec) -> None:
        super().__init__()
        self.table = nn.Embedding(MAX_DEGREE + 1, spec.hidden_size)
        nn.init.normal_(self.table.weight, std=0.02)
        self.dropout = CounterDropout(spec.dropout, site=1)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        h = h + self.table(batch.degree.clamp(max=MAX_DEGREE))
        return self.dropout(h, node_ids=batch.node_ids, draw=batch.draw)


class Distance(nn.Module):
    """The home of the distance table that the attention of all blocks shares (section 3.1.2); ``h`` passes by."""

    def __init__(self, spec: GraphormerSpec) -> None:
        super().__init__()
        self.table = nn.Parameter(_first_table(spec))  # [H, B]

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """``h`` [n, d] itself: the table enters the blocks, tile by tile."""
        return h


class Attention(nn.Module):
    """Multi-head self-attention with the distance bias. The key projection has no bias: softmax would cancel it."""

    def __init__(self, spec: GraphormerSpec, *, distance: Distance) -> None:
        super().__init__()
        self.distance = distance
        self.num_heads = spec.num_heads
        self.query = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.key = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)
        self.value = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.exchange: Exchange = LocalExchange()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        q, k, v = (linear(h).unflatten(1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value))
        mixed = biased_attention(
            q,
            k=k,
            v=v,
            table=self.distance.table,
            buckets=batch.buckets,
            layout=batch.layout,
            exchange=self.exchange,
        )
        return self.out(mixed.flatten(1))


class Block(nn.Module):
    """Attention, then a feed-forward network, each on the normalised state and added to it."""

    def __init__(self, spec: GraphormerSpec, *, index: int, distance: Distance) -> None:
        super().__init__()
        width = max(1, round(spec.hidden_size * spec.ffn_ratio))
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention = Attention(spec, distance=distance)
        self.attention_dropout = CounterDropout(spec.dropout, site=2 + 2 * index)
        self.ffn_norm = nn.LayerNorm(spec.hidden_size)
        self.ffn = nn.Sequential(nn.Linear(spec.hidden_size, width), nn.GELU(), nn.Linear(width, spec.hidden_size))
        self.ffn_dropout = CounterDropout(spec.dropout, site=3 + 2 * index)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        h = h + self.attention_dropout(self.attention(self.attention_norm(h), batch=batch), **key)
        return h + self.ffn_dropout(self.ffn(self.ffn_norm(h)), **key)


class Head(nn.Module):
    """Class scores of every row."""

    def __init__(self, spec: GraphormerSpec, *, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.project = nn.Linear(spec.hidden_size, num_classes)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """Logits [n, C] from ``h`` [n, d]."""
        return self.project(self.norm(h))


class Graphormer(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: GraphormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(spec, num_features=num_features)
        self.degree = Degree(spec)
        self.distance = Distance(spec)
        self.blocks = nn.ModuleList(
            Block(spec, index=index, distance=self.distance) for index in range(spec.num_layers)
        )
        self.head = Head(spec, num_classes=num_classes)

    def units(self) -> dict[str, nn.Module]:
        """The parts that a plan may place and treat on their own, by the plan's names, in order."""
        parts = (self.features, self.degree, self.distance, *self.blocks, self.head)
        return dict(zip(self.spec.units, parts, strict=True))


def _first_table(spec: GraphormerSpec) -> Tensor:
    hops = torch.arange(spec.max_distance + 2, dtype=torch.get_default_dtype())
    row = (_BIAS_PER_HOP * hops).clamp(min=_FAR_BIAS)
    row[-1] = _FAR_BIAS
    return row.repeat(spec.num_heads, 1)
