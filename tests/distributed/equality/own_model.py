"""A user's own model, found by its import path: it mixes rows in every way that there is, or in those asked for."""

import torch
from torch import Tensor, nn

from workers.models.attention import Attention, Distance
from workers.models.graph_batch import GraphBatch
from workers.ops.edge_attention import edge_attention
from workers.ops.exchanges import LocalNeighbours, LocalSums
from workers.ops.linear_attention import linear_attention
from workers.ops.segment import sum_over_edges


class OwnModel(nn.Module):
    """``mixers``: ``attention`` to all rows, ``edges``, ``sums`` over a graph. Rows are centred before they mix."""

    def __init__(
        self,
        *,
        mixers: list[str],
        hidden_size: int,
        num_heads: int,
        max_distance: int,
        num_layers: int,
        num_features: int,
        num_classes: int,
    ) -> None:
        super().__init__()
        self.features = Project(num_features, hidden_size)
        self.distance = Distance(num_heads, max_distance=max_distance) if "attention" in mixers else None
        self.block = nn.ModuleList(
            Block(mixers, hidden_size, num_heads, distance=self.distance) for _ in range(num_layers)
        )
        self.head = Project(hidden_size, num_classes)


class Project(nn.Linear):
    def forward(self, h: Tensor | None, *, batch: GraphBatch) -> Tensor:
        return super().forward(batch.x if h is None else h)


class Block(nn.Module):
    def __init__(self, mixers: list[str], hidden_size: int, num_heads: int, *, distance: Distance | None) -> None:
        super().__init__()
        self.centre = Centre()
        build = {
            "attention": lambda: Attention(hidden_size, num_heads, distance=distance, edge_path=None),
            "edges": lambda: AlongEdges(hidden_size, num_heads),
            "sums": lambda: OverAll(hidden_size, num_heads),
        }
        self.mixers = nn.ModuleList(build[name]() for name in mixers)

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        h = self.centre(h)
        return h + torch.stack([mixer(h, batch=batch) for mixer in self.mixers]).sum(0)


class AlongEdges(nn.Module):
    """Queries are computed while keys and values travel; messages travel with them."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key_value = nn.Linear(hidden_size, 2 * hidden_size, bias=False)  # softmax would cancel that of keys
        self.neighbours = LocalNeighbours()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        pending = self.neighbours.begin(self.key_value(h), halo=batch.edges.halo)
        messages = self.neighbours.begin(h.tanh(), halo=batch.edges.halo)
        q = self.query(h).unflatten(1, (self.num_heads, -1))
        k, v = pending.rows().unflatten(1, (2, self.num_heads, -1)).unbind(1)
        attended = edge_attention(q, k=k, v=v, edges=batch.edges).flatten(1)
        return attended + sum_over_edges(messages.rows(), edges=batch.edges)


class OverAll(nn.Module):
    """Linear attention within each graph."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.project = nn.Linear(hidden_size, 3 * hidden_size)
        self.sums = LocalSums()

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        layout, parts = batch.layout, [h.new_empty(0, self.num_heads, h.shape[1] // self.num_heads)]
        projected = self.project(h).unflatten(1, (3, self.num_heads, -1))
        for graph, num_rows in enumerate(batch.graph_sizes.tolist()):
            q, k, v = projected[layout.rows(layout.shard, graph)].unbind(1)
            parts.append(linear_attention(q, k=k, v=v, sums=self.sums, num_rows=num_rows))
        return torch.cat(parts).flatten(1)


class Centre(nn.Module):
    """Takes half of the mean over all rows of the micro-batch away, wherever they are (all of it would undo a bias)."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_sums = LocalSums()

    def forward(self, h: Tensor) -> Tensor:
        total = self.batch_sums.sum(torch.cat([h.sum(dim=0), h.new_tensor([len(h)])]))
        return h - total[:-1] / (2 * total[-1].detach().clamp(min=1))
