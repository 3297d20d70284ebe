"""From a data set to the rows that this rank trains on.

Every graph is cut into ``cp`` shards (``workers.data.partition``). A rank keeps its shard of each graph that it has
met, features, edges and distance index included: the index costs rows x N bytes and a breadth-first search per row, and
is asked for again in every step. It is of the rows that attend here: where ranks share heads, those of a run of shards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.data.graph import NO_SPLIT, Graph, GraphDataset
from workers.data.graph_encodings.distances import distance_buckets
from workers.data.partition import NodeCut, NodeCuts
from workers.data.shard_edges import join_edges, shard_edges
from workers.errors import DatasetInvalidError
from workers.model_specs import Needs
from workers.models.graph_batch import GraphBatch
from workers.ops.row_edges import RowEdges
from workers.ops.row_layout import RowLayout

_CARRIED = frozenset({"edges", "max_distance"})  # of a model's needs


@dataclass(frozen=True)
class LabelledBatch:
    """Some rows of some graphs, with what is known of their classes."""

    inputs: GraphBatch
    y: Tensor  # of every prediction, as in ``workers.data.graph.Graph``: n rows, or one per graph
    split: Tensor  # int8, likewise
    ids: Tensor  # int64, likewise: number of the node or graph in the data set; -1 where another shard counts it


@dataclass(frozen=True)
class _GraphShard:
    """This rank's rows of one graph, ready on the device."""

    sizes: tuple[int, ...]  # rows of every shard of this graph
    x: Tensor
    degree: Tensor
    node_ids: Tensor
    y: Tensor
    split: Tensor
    ids: Tensor
    buckets: Tensor | None
    edges: RowEdges | None


class ShardedBatches:
    """Batches of ``dataset`` for the rank at ``axis`` (the cp axis), on ``device``, with all that a model ``needs``.

    ``cuts`` says which nodes its shards are of, by default runs of equal length in natural order; ``ulysses_degree``
    neighbouring ranks share heads. Raises ``DatasetInvalidError`` where a need has no encoding here.
    """

    def __init__(
        self,
        dataset: GraphDataset,
        *,
        axis: Axis,
        needs: Needs,
        dtype: torch.dtype,
        device: torch.device,
        cuts: NodeCuts | None = None,
        ulysses_degree: int = 1,
    ) -> None:
        if missing := sorted(needs.model_dump(exclude_defaults=True).keys() - _CARRIED):
            raise DatasetInvalidError(
                f"the model needs {', '.join(missing)} of every graph, and batches carry {', '.join(sorted(_CARRIED))}"
                " only; choose a model, or sizes of it, without the others"
            )
        self._dataset = dataset
        self._axis = axis
        self._cuts = NodeCuts(dataset.graphs) if cuts is None else cuts
        self._ulysses_degree = ulysses_degree
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
            edges=self._joined_edges([shard.edges for shard in shards if shard.edges is not None]),
            layout=layout,
            draw=draw,
        )
        outputs = () if self._dataset.task == "classes" else (self._dataset.num_classes,)
        return LabelledBatch(
            inputs=inputs,
            y=self._joined([shard.y for shard in shards], self._label_dtype, *outputs),
            split=self._joined([shard.split for shard in shards], torch.int8),
            ids=self._joined([shard.ids for shard in shards], torch.int64),
        )

    @property
    def _label_dtype(self) -> torch.dtype:
        return torch.int64 if self._dataset.task == "classes" else self._dtype

    def _joined(self, parts: list[Tensor], dtype: torch.dtype, *columns: int) -> Tensor:
        if len(parts) == 1:  # one large graph: no copy of its features in every step
            return parts[0]
        return torch.cat([torch.empty(0, *columns, dtype=dtype, device=self._device), *parts])

    def _shard(self, index: int) -> _GraphShard:
        if index not in self._shards:
            self._shards[index] = self._cut(index)
        return self._shards[index]

    def _joined_edges(self, parts: list[RowEdges]) -> RowEdges | None:
        if not self._needs.edges:
            return None
        return join_edges(parts, num_shards=self._axis.size).to(self._device)

    def _cut(self, index: int) -> _GraphShard:
        graph = self._dataset.graphs[index]
        cut = self._cuts.cut(index, self._axis.size)
        nodes = cut.nodes(self._axis.index)
        y, split, ids = self._labels(index, nodes)
        return _GraphShard(
            sizes=cut.sizes,
            x=self._placed(graph.features.gather(nodes), self._dtype),
            degree=self._placed(graph.in_degrees(nodes), torch.int64),
            node_ids=self._placed(nodes + self._first_ids[index], torch.int64),
            y=self._placed(y, self._label_dtype),
            split=self._placed(split, torch.int8),
            ids=self._placed(ids, torch.int64),
            buckets=self._buckets(graph, cut),
            edges=shard_edges(graph, cut=cut, shard=self._axis.index).to(self._device) if self._needs.edges else None,
        )

    def _labels(self, index: int, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, parts and numbers of what is predicted here. All shards predict a graph; the first counts it."""
        graph = self._dataset.graphs[index]
        if self._dataset.level == "node":
            return graph.y[nodes], graph.split[nodes], nodes + self._first_ids[index]
        if self._axis.index == 0:
            return graph.y, graph.split, np.array([index])
        return graph.y, np.full(1, NO_SPLIT, dtype=np.int8), np.array([-1])

    def _buckets(self, graph: Graph, cut: NodeCut) -> Tensor | None:
        """Of the rows that attend here and all nodes, both in the order of the cut."""
        if self._needs.max_distance is None:
            return None
        first = self._axis.index - self._axis.index % self._ulysses_degree
        rows = np.concatenate([cut.nodes(shard) for shard in range(first, first + self._ulysses_degree)])
        buckets = distance_buckets(graph, rows=rows, max_distance=self._needs.max_distance)
        return self._placed(buckets if cut.is_natural else buckets[:, cut.order], torch.uint8)

    def _placed(self, array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self._device, dtype=dtype)
