"""From a data set to the rows that this rank trains on.

Every graph is cut into ``cp`` runs of neighbouring rows (``even_cut``). A rank keeps its run of each graph that it has
met, features and distance index included: the index costs rows x N bytes and a breadth-first search per row, and is
asked for again in every step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.data.distances import distance_buckets
from workers.data.graph import Graph, GraphDataset
from workers.model_specs import Needs
from workers.models.graph_batch import GraphBatch
from workers.ops.row_layout import RowLayout, even_cut


@dataclass(frozen=True)
class LabelledBatch:
    """Some rows of some graphs, with what is known of their classes."""

    inputs: GraphBatch
    y: Tensor  # int64 [n], -1 where there is no label
    split: Tensor  # int8 [n]


@dataclass(frozen=True)
class _GraphShard:
    """This rank's rows of one graph, ready on the device."""

    sizes: tuple[int, ...]  # rows of every shard of this graph
    x: Tensor
    degree: Tensor
    node_ids: Tensor
    y: Tensor
    split: Tensor
    buckets: Tensor | None


class ShardedBatches:
    """Batches of ``dataset`` for the rank at ``axis`` (the cp axis), on ``device``, with all that a model ``needs``."""

    def __init__(
        self, dataset: GraphDataset, *, axis: Axis, needs: Needs, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dataset = dataset
        self._axis = axis
        self._needs = needs
        self._dtype = dtype
        self._device = device
        self._first_ids = tuple(accumulate((graph.num_nodes for graph in dataset.graphs), initial=0))
        self._shards: dict[int, _GraphShard] = {}

    def prepare(self, graphs: Iterable[int]) -> None:
        """Cut ``graphs`` now, so that a step that is being timed finds them ready."""
        for graph in graphs:
            self._shard(graph)

    def batch(self, graphs: Sequence[int], *, draw: int) -> LabelledBatch:
        """This rank's rows of ``graphs`` (positions in the data set; none is fine), for drawing ``draw`` of dropout."""
        shards = [self._shard(graph) for graph in graphs]
        layout = RowLayout(
            sizes=tuple(tuple(shard.sizes[index] for shard in shards) for index in range(self._axis.size)),
            shard=self._axis.index,
        )
        inputs = GraphBatch(
            x=self._joined([shard.x for shard in shards], self._dtype, self._dataset.num_features),
            degree=self._joined([shard.degree for shard in shards], torch.int64),
            node_ids=self._joined([shard.node_ids for shard in shards], torch.int64),
            buckets=tuple(shard.buckets for shard in shards if shard.buckets is not None),
            layout=layout,
            draw=draw,
        )
        return LabelledBatch(
            inputs=inputs,
            y=self._joined([shard.y for shard in shards], torch.int64),
            split=self._joined([shard.split for shard in shards], torch.int8),
        )

    def _joined(self, parts: list[Tensor], dtype: torch.dtype, *columns: int) -> Tensor:
        if len(parts) == 1:  # one large graph: no copy of its features in every step
            return parts[0]
        return torch.cat([torch.empty(0, *columns, dtype=dtype, device=self._device), *parts])

    def _shard(self, index: int) -> _GraphShard:
        if index not in self._shards:
            self._shards[index] = self._cut(index)
        return self._shards[index]

    def _cut(self, index: int) -> _GraphShard:
        graph = self._dataset.graphs[index]
        sizes = even_cut(graph.num_nodes, self._axis.size)
        start = sum(sizes[: self._axis.index])
        rows = np.arange(start, start + sizes[self._axis.index])
        return _GraphShard(
            sizes=sizes,
            x=self._placed(graph.features.gather(rows), self._dtype),
            degree=self._placed(graph.in_degrees(rows), torch.int64),
            node_ids=self._placed(rows + self._first_ids[index], torch.int64),
            y=self._placed(graph.y[rows], torch.int64),
            split=self._placed(graph.split[rows], torch.int8),
            buckets=self._buckets(graph, rows),
        )

    def _buckets(self, graph: Graph, rows: np.ndarray) -> Tensor | None:
        if self._needs.max_distance is None:
            return None
        return self._placed(distance_buckets(graph, rows=rows, max_distance=self._needs.max_distance), torch.uint8)

    def _placed(self, array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self._device, dtype=dtype)
