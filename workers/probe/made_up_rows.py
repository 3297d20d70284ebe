"""Random rows in real shapes: a ``GraphBatch`` of any size for the units of a model to be timed on.

Edges are as many for each row as the data set has in the mean, from any row; nothing is asked of other ranks, whose
halo a rank with made-up edges does without.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from planner.profiles import UnitSize
from workers.data.graph import GraphDataset
from workers.data.graph_encodings.index_form import mean_pairs_within
from workers.megagraph.wide_edges import join_wide_edges
from workers.model_specs.needs import Needs
from workers.models.graph_batch import GraphBatch
from workers.ops.near_pairs import NearPairs, PairBuckets
from workers.ops.row_edges import RowEdges
from workers.ops.row_layout import RowLayout, even_cut


class MadeUpRows:
    """Makes rows as ``needs`` says, of the sizes that ``dataset`` has."""

    def __init__(self, needs: Needs, *, dataset: GraphDataset, dtype: str, device: torch.device) -> None:
        self._needs = needs
        self._num_features = dataset.num_features
        self._edges_per_row = dataset.num_edges / max(1, dataset.num_nodes)
        self._near_per_row = _near_per_row(needs, dataset)
        self._options = {"dtype": getattr(torch, dtype), "device": device}
        self._device = device

    def batch(self, size: UnitSize) -> GraphBatch:
        """The rows of ``size`` that lie here: those of the first shard."""
        needs, count, device = self._needs, size.num_graphs * size.num_rows, self._device
        wide = needs.expander_degree + needs.num_global > 0
        return GraphBatch(
            x=torch.rand(count, self._num_features, **self._options),
            degree=torch.randint(8, (count,), device=device),
            node_ids=torch.arange(count, device=device),
            graph_ids=torch.arange(size.num_graphs, device=device),
            layout=RowLayout(sizes=tuple((part,) * size.num_graphs for part in shard_sizes(size))),
            graph_node_ids=(torch.arange(size.num_columns, device=device),) * size.num_graphs
            if needs.pair_dropout
            else (),
            buckets=self._buckets(size, max_distance=needs.max_distance) if needs.max_distance is not None else (),
            paths=self._pairs(size, needs.max_distance or 0, high=max(1, needs.edge_types) + 1)
            if needs.edge_paths
            else (),
            edges=self._edges(count, per_row=self._edges_per_row) if needs.edges else None,
            wide_edges=join_wide_edges(self._widened(size), needs=needs, num_shards=1).to(device) if wide else None,
            laplacian=self._numbers(count, needs.laplacian_size) if needs.laplacian_size else None,
            walks=self._numbers(count, needs.walk_length) if needs.walk_length else None,
            hops=None if needs.num_hops is None else self._numbers(count, needs.num_hops + 1, self._num_features),
        )

    @staticmethod
    def tensors(batch: GraphBatch) -> tuple[Tensor, ...]:
        """All that lies ready in ``batch``, whether or not a unit runs."""
        return tuple(_tensors_of(batch))

    def _pairs(self, size: UnitSize, *more: int, high: int) -> tuple[Tensor, ...]:
        shape = (size.num_rows, size.num_columns, *more)
        options = {"dtype": torch.uint8, "device": self._device}
        return tuple(torch.randint(high, shape, **options) for _ in range(size.num_graphs))

    def _buckets(self, size: UnitSize, *, max_distance: int) -> tuple[PairBuckets, ...]:
        """As many near pairs a row as the data set has, evenly spread; or a bucket of every pair."""
        if not self._needs.near_pairs:
            return self._pairs(size, high=max_distance + 2)
        per_row = min(size.num_columns, self._near_per_row)
        columns = torch.arange(per_row, device=self._device) * size.num_columns // max(1, per_row)
        near = NearPairs(
            indptr=torch.arange(size.num_rows + 1, device=self._device) * per_row,
            columns=columns.int().repeat(size.num_rows),
            buckets=torch.randint(max_distance + 1, (size.num_rows * per_row,), dtype=torch.uint8, device=self._device),
            far=max_distance + 1,
            num_columns=size.num_columns,
        )
        return (near,) * size.num_graphs

    def _numbers(self, *shape: int) -> Tensor:
        return torch.rand(shape, **self._options)

    def _widened(self, size: UnitSize) -> list[RowEdges]:
        per_row = self._edges_per_row + self._needs.expander_degree
        return [self._edges(size.num_rows, per_row=per_row) for _ in range(size.num_graphs)]

    def _edges(self, count: int, *, per_row: float) -> RowEdges:
        indptr = (torch.arange(count + 1, device=self._device) * per_row).long()
        num_edges = int(indptr[-1])
        kinds = max(1, self._needs.edge_types)
        return RowEdges(
            indptr=indptr,
            sources=torch.randint(max(1, count), (num_edges,), device=self._device),
            types=torch.randint(kinds, (num_edges,), device=self._device),
        )


def _near_per_row(needs: Needs, dataset: GraphDataset) -> int:
    if not needs.near_pairs or needs.max_distance is None:
        return 0
    largest = max(dataset.graphs, key=lambda graph: graph.num_nodes)
    return math.ceil(mean_pairs_within(largest, max_distance=needs.max_distance))


def shard_sizes(size: UnitSize) -> tuple[int, ...]:
    """Rows of every shard of a graph: those here, and what is left of it cut evenly over the others."""
    if size.num_shards == 1:
        return (size.num_rows,)
    return (size.num_rows, *even_cut(size.num_columns - size.num_rows, size.num_shards - 1))


def _tensors_of(value: object) -> Iterator[Tensor]:
    """The tensors in ``value`` and, edges being values of tensors, in what it holds; those made on demand as well."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors_of(part)
    elif hasattr(value, "__dataclass_fields__"):
        for part in vars(value).values():
            yield from _tensors_of(part)
