"""GraphGPS: in every block message passing and attention to all nodes side by side, then a feed-forward network.

    local = Norm(h + dropout(MPNN(h, edges)));   far = Norm(h + dropout(Attention(h, distance bias)))
    out = Norm(s + dropout(FFN(s))),   s = local + far

Source: Rampášek et al., "Recipe for a General, Powerful, Scalable Graph Transformer", NeurIPS 2022, section 3 and
equations 2 to 5. The message passing is GCN or GINE; the attention carries Graphormer's distance bias (one table for
all blocks), which the paper allows for and does not use. Positions: Laplacian eigenvectors, return probabilities
of walks.

``Block`` takes any attention ``(h, batch=batch)``: ``workers.models.exphormer`` gives it a sparse one. Units:
``features``, ``laplacian`` and ``walks`` where asked for, ``distance``, ``block.i``, ``head``. Shapes: n rows here, d
hidden size.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from workers.model_specs.transformers import ExphormerSpec, GraphGPSSpec
from workers.models.attention import Attention, Distance
from workers.models.graph_batch import GraphBatch
from workers.models.layers import Features, FeedForward, Head, Laplacian, Walks, build_norm
from workers.models.message_passing import build_message_passing
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import CounterDropout

_FIRST_SITE = 1


class Block(nn.Module):
    """One layer; see the module."""

    def __init__(self, spec: GraphGPSSpec | ExphormerSpec, *, index: int, attention: nn.Module) -> None:
        super().__init__()
        self.local = build_message_passing(spec.message_passing, spec.hidden_size, edge_types=spec.edge_types)
        self.attention = attention
        self.ffn = FeedForward(spec.hidden_size, ratio=spec.ffn_ratio)
        self.local_norm, self.attention_norm, self.ffn_norm = (
            build_norm(spec.norm, spec.hidden_size) for _ in range(3)
        )
        self.local_dropout, self.attention_dropout, self.ffn_dropout = (
            CounterDropout(spec.dropout, site=_FIRST_SITE + 3 * index + place) for place in range(3)
        )

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        """[n, d] from ``h`` [n, d]."""
        key = {"node_ids": batch.node_ids, "draw": batch.draw}
        local = self.local_norm(h + self.local_dropout(self.local(h, batch=batch), **key))
        far = self.attention_norm(h + self.attention_dropout(self.attention(h, batch=batch), **key))
        h = local + far
        return self.ffn_norm(h + self.ffn_dropout(self.ffn(h), **key))


class GraphGPS(GraphTransformer):
    """The whole model; see the module for its parts."""

    def __init__(self, spec: GraphGPSSpec, *, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.spec = spec
        self.features = Features(num_features, spec.hidden_size, dropout=spec.input_dropout)
        self.positions = nn.ModuleList(build_positions(spec))
        self.distance = Distance(spec.num_heads, max_distance=spec.max_distance)
        self.blocks = nn.ModuleList(
            Block(
                spec,
                index=index,
                attention=Attention(
                    spec.hidden_size,
                    spec.num_heads,
                    distance=self.distance,
                    edge_path=None,
                    dropout=spec.attention_dropout,
                    index=index,
                ),
            )
            for index in range(spec.num_layers)
        )
        self.head = Head(spec.hidden_size, num_classes, pooling=spec.pooling)

    def units(self) -> dict[str, nn.Module]:
        """See ``GraphTransformer``."""
        return self.named(self.features, *self.positions, self.distance, *self.blocks, self.head)


def build_positions(spec: GraphGPSSpec | ExphormerSpec) -> Iterator[nn.Module]:
    """The units that add positions, as ``spec`` asks for."""
    if spec.laplacian_size:
        yield Laplacian(spec.laplacian_size, spec.hidden_size)
    if spec.walk_length:
        yield Walks(spec.walk_length, spec.hidden_size)
