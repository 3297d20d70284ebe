"""Graphormer for node classification: a pre-norm transformer over the nodes, with degree embedding and distance bias.

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?", NeurIPS 2021, section 3.1. One
distance table is shared by all layers, as there; it lives in ``embedding`` beside the other encodings. Left out: edge
encodings (the data sets have no edge features) and the virtual node (nodes are classified, not graphs).

In comes a ``GraphBatch`` (some rows of some graphs), out go logits for the same rows. The module knows nothing of
ranks: which keys a row attends to is asked of ``attention.exchange``, which parallelism may swap. Units, as plans name
them: ``embedding``, ``block.i``, ``head``. Attention probabilities are not dropped, features and hidden states are.

Shapes: n rows here, F features, d hidden size, H heads, C classes, B = max_distance + 2 buckets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workers.ops.biased_attention import Exchange, LocalExchange, biased_attention
from workers.ops.counter_dropout import CounterDropout
from workers.ops.row_layout import RowLayout
from workers.spec import GraphormerSpec

# Nodes with more neighbours share the last embedding; few nodes have so many, and theirs would hardly be trained.
MAX_DEGREE = 64
# First bias per hop, and of the far bucket. Most pairs are far: with all buckets at zero a node of a graph of thousands
# would start with the average of the whole graph and learn to look near slowly, if at all. At -10 it takes 20,000 far
# nodes to outweigh the node itself; one unit per hop balances a hop's nodes against the fewer ones of the hop before.
# On Cora -8 and -10 were alike (78 % test), within the noise of seeds.
_BIAS_PER_HOP = -1.0
_FAR_BIAS = -10.0


@dataclass(frozen=True)
class GraphBatch:
    """Rows of one or many graphs, graph after graph as ``layout`` says.

    ``node_ids`` are unique in the data set and the same on every rank: they, with ``draw``, decide what dropout drops.
    """

    x: Tensor  # [n, F]
    degree: Tensor  # int64 [n]
    node_ids: Tensor  # int64 [n]
    buckets: tuple[Tensor, ...]  # of graph g: uint8 [n_g, N_g], distance buckets of (own row, any node of the graph)
    layout: RowLayout
    draw: int = 0


class Embedding(nn.Module):
    """Features and degree into the hidden state; also the home of the distance table that all blocks share."""

    def __init__(self, spec: GraphormerSpec, *, num_features: int) -> None:
        super().__init__()
        self.input_dropout = CounterDropout(spec.input_dropout, site=0)
        self.project = nn.Linear(num_features, spec.hidden_size, bias=False)  # the degree embedding acts as one
        self.norm = nn.LayerNorm(spec.hidden_size)
        self.degree = nn.Embedding(MAX_DEGREE + 1, spec.hidden_size)
        nn.init.normal_(self.degree.weight, std=0.02)
        self.dropout = CounterDropout(spec.dropout, site=1)
        self.distance_table = nn.Parameter(_first_table(spec))  # [H, B]

    def forward(self, batch: GraphBatch) -> Tensor:
        """Hidden state [n, d]."""
        x = self.input_dropout(batch.x, node_ids=batch.node_ids, draw=batch.draw)
        h = self.norm(self.project(x)) + self.degree(batch.degree.clamp(max=MAX_DEGREE))
        return self.dropout(h, node_ids=batch.node_ids, draw=batch.draw)


class Attention(nn.Module):
    """Multi-head self-attention with the distance bias. The key projection has no bias: softmax would cancel it."""

    def __init__(self, spec: GraphormerSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.query = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.key = nn.Linear(spec.hidden_size, spec.hidden_size, bias=False)
        self.value = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.out = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.exchange: Exchange = LocalExchange()

    def forward(self, h: Tensor, *, table: Tensor, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        q, k, v = (linear(h).unflatten(1, (self.num_heads, -1)) for linear in (self.query, self.key, self.value))
        mixed = biased_attention(
            q, k=k, v=v, table=table, buckets=batch.buckets, layout=batch.layout, exchange=self.exchange
        )
        return self.out(mixed.flatten(1))


class Block(nn.Module):
    """Attention, then a feed-forward network, each on the normalised state and added to it."""

    def __init__(self, spec: GraphormerSpec, *, index: int) -> None:
        super().__init__()
        width = max(1, round(spec.hidden_size * spec.ffn_ratio))
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention = Attention(spec)
        self.attention_dropout = CounterDropout(spec.dropout, site=2 + 2 * index)
        self.ffn_norm = nn.LayerNorm(spec.hidden_size)
        self.ffn = nn.Sequential(nn.Linear(spec.hidden_size, width), nn.GELU(), nn.Linear(width, spec.hidden_size))
        self.ffn_dropout = CounterDropout(spec.dropout, site=3 + 2 * index)

    def forward(self, h: Tensor, *, table: Tensor, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        h = h + self.attention_dropout(self.attention(self.attention_norm(h), table=table, batch=batch), **key)
        return h + self.ffn_dropout(self.ffn(self.ffn_norm(h)), **key)


class Graphormer(nn.Module):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: GraphormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = Embedding(spec, num_features=num_features)
        self.blocks = nn.ModuleList(Block(spec, index=index) for index in range(spec.num_layers))
        self.head = nn.Sequential(nn.LayerNorm(spec.hidden_size), nn.Linear(spec.hidden_size, num_classes))

    def forward(self, batch: GraphBatch) -> Tensor:
        """Logits [n, C] of the rows of ``batch``."""
        h = self.embedding(batch)
        for block in self.blocks:
            h = block(h, table=self.embedding.distance_table, batch=batch)
        return self.head(h)

    def units(self) -> dict[str, nn.Module]:
        """The parts that a plan may place and treat on their own, by the plan's names, in order."""
        parts = (self.embedding, *self.blocks, self.head)
        return dict(zip(unit_names(self.spec), parts, strict=True))


def unit_names(spec: GraphormerSpec) -> tuple[str, ...]:
    """The names of the units of a model of ``spec``, in order."""
    return ("embedding", *(f"block.{index}" for index in range(spec.num_layers)), "head")


def _first_table(spec: GraphormerSpec) -> Tensor:
    hops = torch.arange(spec.max_distance + 2, dtype=torch.get_default_dtype())
    row = (_BIAS_PER_HOP * hops).clamp(min=_FAR_BIAS)
    row[-1] = _FAR_BIAS
    return row.repeat(spec.num_heads, 1)
