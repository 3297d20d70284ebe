"""From a data set to the rows that this rank trains on.

Every graph is cut into ``cp`` shards (``workers.data.partition``). A rank keeps its shard of each graph that it has
met, encodings (``encoded_rows``) included: a distance index costs rows x N bytes and a breadth-first search per row,
and is asked for again in every step. It is of the rows that attend here: where ranks share heads, those of a run of
shards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.data.graph import NO_SPLIT, GraphDataset
from workers.data.partition import NodeCuts
from workers.data.paths import DataPaths
from workers.data.shard_edges import join_edges
from workers.megagraph.encoded_rows import EncodedRows, RowEncoder
from workers.megagraph.wide_edges import join_wide_edges
from workers.model_specs.needs import Needs
from workers.models.graph_batch import GraphBatch, WideEdges
from workers.ops.row_edges import RowEdges
from workers.ops.row_layout import RowLayout


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
    graph_node_ids: Tensor | None  # of all shards
    y: Tensor
    split: Tensor
    ids: Tensor
    encoded: EncodedRows


class ShardedBatches:
    """Batches of ``dataset`` for the rank at ``axis`` (the cp axis), on ``device``, with all that a model ``needs``.

    ``cuts`` says which nodes its shards are of, by default runs of equal length in natural order; ``ulysses_degree``
    neighbouring ranks share heads. ``paths``: see ``RowEncoder``.
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
        paths: DataPaths | None = None,
    ) -> None:
        self._dataset = dataset
        self._axis = axis
        self._cuts = NodeCuts(dataset.graphs) if cuts is None else cuts
        self._ulysses_degree = ulysses_degree
        self._needs = needs
        self._dtype = dtype
        self._device = device
        self._first_ids = tuple(accumulate((graph.num_nodes for graph in dataset.graphs), initial=0))
        self._encoder = RowEncoder(dataset, needs=needs, dtype=dtype, device=device, paths=paths)
        self._shards: dict[int, _GraphShard] = {}
        self._wide_of_one: dict[int, WideEdges] = {}  # of a graph that makes a micro-batch alone

    @property
    def level(self) -> str:
        """What is predicted: a node or a graph."""
        return self._dataset.level

    @property
    def num_outputs(self) -> int:
        """Numbers that are predicted for each."""
        return self._dataset.num_classes

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
            layout=layout,
            draw=draw,
            graph_ids=torch.tensor(graphs, dtype=torch.int64, device=self._device),
            graph_node_ids=tuple(shard.graph_node_ids for shard in shards if shard.graph_node_ids is not None),
            **self._encodings(graphs, [shard.encoded for shard in shards]),
        )
        outputs = () if self._dataset.task == "classes" else (self.num_outputs,)
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

    def _encodings(self, graphs: Sequence[int], parts: list[EncodedRows]) -> dict[str, Any]:
        """The fields of the batch that the model asks for, by name."""
        needs, features = self._needs, self._dataset.num_features
        found: dict[str, Any] = {}
        if needs.max_distance is not None:
            found["buckets"] = tuple(part.buckets for part in parts)
        if needs.edge_paths:
            found["paths"] = tuple(part.paths for part in parts)
        if needs.edges:
            joined = join_edges(_edges(part.edges for part in parts), num_shards=self._axis.size)
            found["edges"] = joined if parts else joined.to(self._device)
        if needs.expander_degree or needs.num_global:
            found["wide_edges"] = self._wide(graphs, _edges(part.widened for part in parts))
        for name, asked, columns in (
            ("laplacian", needs.laplacian_size > 0, (needs.laplacian_size,)),
            ("walks", needs.walk_length > 0, (needs.walk_length,)),
            ("hops", needs.num_hops is not None, ((needs.num_hops or 0) + 1, features)),
        ):
            if asked:
                found[name] = self._joined([getattr(part, name) for part in parts], self._dtype, *columns)
        return found

    def _wide(self, graphs: Sequence[int], parts: list[RowEdges]) -> WideEdges:
        join = partial(join_wide_edges, parts, needs=self._needs, num_shards=self._axis.size)
        if len(graphs) != 1:
            return join().to(self._device)
        if graphs[0] not in self._wide_of_one:
            self._wide_of_one[graphs[0]] = join()
        return self._wide_of_one[graphs[0]]

    def _cut(self, index: int) -> _GraphShard:
        graph = self._dataset.graphs[index]
        cut = self._cuts.cut(index, self._axis.size)
        nodes = cut.nodes(self._axis.index)
        first = self._axis.index - self._axis.index % self._ulysses_degree
        attending = np.concatenate([cut.nodes(shard) for shard in range(first, first + self._ulysses_degree)])
        y, split, ids = self._labels(index, nodes)
        return _GraphShard(
            sizes=cut.sizes,
            x=self._placed(graph.features.gather(nodes), self._dtype),
            degree=self._placed(graph.in_degrees(nodes), torch.int64),
            node_ids=self._placed(nodes + self._first_ids[index], torch.int64),
            graph_node_ids=self._placed(cut.order + self._first_ids[index], torch.int64)
            if self._needs.pair_dropout
            else None,
            y=self._placed(y, self._label_dtype),
            split=self._placed(split, torch.int8),
            ids=self._placed(ids, torch.int64),
            encoded=self._encoder.encode(index, cut=cut, shard=self._axis.index, attending=attending),
        )

    def _labels(self, index: int, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Labels, parts and numbers of what is predicted here. All shards predict a graph; the first counts it."""
        graph = self._dataset.graphs[index]
        if self._dataset.level == "node":
            return graph.y[nodes], graph.split[nodes], nodes + self._first_ids[index]
        if self._axis.index == 0:
            return graph.y, graph.split, np.array([index])
        return graph.y, np.full(1, NO_SPLIT, dtype=np.int8), np.array([-1])

    def _placed(self, array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=self._device, dtype=dtype)


def _edges(parts: Iterable[RowEdges | None]) -> list[RowEdges]:
    return [part for part in parts if part is not None]
