"""Graphormer: a pre-norm transformer over the nodes of a graph, with degree embedding, distance and edge-path bias.

    h' = h + Attention(LN(h));   h'' = h' + FFN(LN(h'))
    Attention: softmax(q k^T / sqrt(d_h) + distance[spd(i, j)] + mean over the edges e_p of a shortest path of
    edge_path[p, type(e_p)]) v

Source: Ying et al., "Do Transformers Really Perform Bad for Graph Representation?", NeurIPS 2021, section 3.1. The
tables are shared by all layers, as there; an edge's weight w_p . x_e is one number per kind of edge. Left out: the
virtual node (graphs are pooled).

In comes a ``GraphBatch`` (some rows of some graphs), out go predictions for the same rows or graphs. The module knows
nothing of ranks: which keys a row attends to is asked of ``attention.exchange``, which parallelism may swap. Units:
``features``, ``degree``, ``distance``, ``edge_path`` where edges have types, ``block.i``, ``head``; every block refers
to the modules of the tables, so each is one parameter. Features, hidden states and attention weights may be dropped.

Shapes: n rows here, F features, d hidden size, H heads, C classes, B = max_distance + 2 buckets.
"""

from torch import Tensor, nn

from workers.model_specs.transformers import GraphormerSpec
from workers.models.attention import Attention, Distance, EdgePath
from workers.models.graph_batch import GraphBatch
from workers.models.layers import FeedForward, Head
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import CounterDropout

# Nodes with more neighbours share the last embedding; few nodes have so many, and theirs would hardly be trained.
MAX_DEGREE = 64


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


class Block(nn.Module):
    """Attention, then a feed-forward network, each on the normalised state and added to it."""

    def __init__(self, spec: GraphormerSpec, *, index: int, distance: Distance, edge_path: EdgePath | None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(spec.hidden_size)
        self.attention = Attention(
            spec.hidden_size,
            spec.num_heads,
            distance=distance,
            edge_path=edge_path,
            dropout=spec.attention_dropout,
            index=index,
        )
        self.attention_dropout = CounterDropout(spec.dropout, site=2 + 2 * index)
        self.ffn_norm = nn.LayerNorm(spec.hidden_size)
        self.ffn = FeedForward(spec.hidden_size, ratio=spec.ffn_ratio, activation=nn.GELU)
        self.ffn_dropout = CounterDropout(spec.dropout, site=3 + 2 * index)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        h = h + self.attention_dropout(self.attention(self.attention_norm(h), batch=batch), **key)
        return h + self.ffn_dropout(self.ffn(self.ffn_norm(h)), **key)


class Graphormer(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: GraphormerSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(spec, num_features=num_features)
        self.degree = Degree(spec)
        self.distance = Distance(spec.num_heads, max_distance=spec.max_distance)
        self.edge_path = (
            EdgePath(spec.num_heads, max_distance=spec.max_distance, edge_types=spec.edge_types)
            if spec.edge_types
            else None
        )
        tables = {"distance": self.distance, "edge_path": self.edge_path}
        self.blocks = nn.ModuleList(Block(spec, index=index, **tables) for index in range(spec.num_layers))
        self.head = Head(spec.hidden_size, num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """The parts that a plan may place and treat on their own, by the plan's names, in order."""
        tables = [table for table in (self.distance, self.edge_path) if table is not None]
        return self.named(self.features, self.degree, *tables, *self.blocks, self.head)
