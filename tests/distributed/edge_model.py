"""A small transformer that mixes rows in every way that needs no dense attention: along edges, and by sums."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.distributed.odd_graphs import NUM_CLASSES, NUM_FEATURES
from workers.model_specs import Needs
from workers.models.graph_batch import GraphBatch
from workers.models.units import GraphTransformer
from workers.ops.edge_attention import edge_attention
from workers.ops.exchanges import LocalNeighbours, LocalSums
from workers.ops.linear_attention import linear_attention
from workers.ops.segment import sum_over_edges


@dataclass(frozen=True)
class EdgeSpec:
    """``with_edges``: attention on edges and a sum of messages; ``with_sums``: linear attention over one graph."""

    with_edges: bool = True
    with_sums: bool = False
    hidden_size: int = 8
    num_heads: int = 2
    num_layers: int = 2

    @property
    def units(self) -> tuple[str, ...]:
        return ("features", *(f"block.{index}" for index in range(self.num_layers)), "head")

    @property
    def row_width(self) -> int:
        return self.hidden_size

    @property
    def needs(self) -> Needs:
        return Needs(edges=self.with_edges)


class Project(nn.Linear):
    def forward(self, h: Tensor | None, *, batch: GraphBatch) -> Tensor:
        return super().forward(batch.x if h is None else h)


class AlongEdges(nn.Module):
    """Queries are computed while keys and values travel; messages travel with them."""

    def __init__(self, spec: EdgeSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.query = nn.Linear(spec.hidden_size, spec.hidden_size)
        self.key_value = nn.Linear(spec.hidden_size, 2 * spec.hidden_size)
        self.neighbours = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        pending = self.neighbours.begin(self.key_value(h), halo=batch.edges.halo)
        messages = self.neighbours.begin(h.tanh(), halo=batch.edges.halo)
        q = self.query(h).unflatten(1, (self.num_heads, -1))
        k, v = pending.rows().unflatten(1, (2, self.num_heads, -1)).unbind(1)
        attended = edge_attention(q, k=k, v=v, edges=batch.edges).flatten(1)
        return attended + sum_over_edges(messages.rows(), edges=batch.edges)


class OverAll(nn.Module):
    """Linear attention; all rows of the batch are one graph's."""

    def __init__(self, spec: EdgeSpec) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.project = nn.Linear(spec.hidden_size, 3 * spec.hidden_size)
        self.sums = LocalSums()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        num_rows = sum(map(sum, batch.layout.sizes))
        q, k, v = self.project(h).unflatten(1, (3, self.num_heads, -1)).unbind(1)
        return linear_attention(q, k=k, v=v, sums=self.sums, num_rows=num_rows).flatten(1)


class Centre(nn.Module):
    """Takes half of the mean over all rows of the micro-batch away, wherever they are (all of it would undo a bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_sums = LocalSums()

    def forward(self, h: Tensor) -> Tensor:
        total = self.batch_sums.sum(torch.cat([h.sum(dim=0), h.new_tensor([len(h)])]))
        return h - total[:-1] / (2 * total[-1].detach().clamp(min=1))


class Block(nn.Module):
    def __init__(self, spec: EdgeSpec) -> None:
        super().__init__()
        self.edges = AlongEdges(spec) if spec.with_edges else None
        self.everything = OverAll(spec) if spec.with_sums else None
        self.centre = Centre()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        h = self.centre(h)
        mixers = (self.edges, self.everything)
        return h + torch.stack([mixer(h, batch=batch) for mixer in mixers if mixer is not None]).sum(0)


class EdgeTransformer(GraphTransformer):
    def __init__(self, spec: EdgeSpec) -> None:
        super().__init__()
        self.features = Project(NUM_FEATURES, spec.hidden_size)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.head = Project(spec.hidden_size, NUM_CLASSES)

    def units(self) -> dict[str, nn.Module]:
        blocks = {f"block.{index}": block for index, block in enumerate(self.blocks)}
        return {"features": self.features, **blocks, "head": self.head}
