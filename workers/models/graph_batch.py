"""What a graph transformer computes on: rows of one or many graphs, and what its spec asks to know of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from workers.ops.near_pairs import PairBuckets
from workers.ops.row_edges import Halo, RowEdges
from workers.ops.row_layout import RowLayout


@dataclass(frozen=True, eq=False)
class WideEdges:
    """Edges, an expander's, and those from global nodes, whose rows come last, graph after graph.

    ``edges.types`` tells them apart. To ``edges`` the global rows are a part of the halo; ``halo`` is what really
    travels between shards.
    """

    edges: RowEdges
    halo: Halo | None

    def to(self, device: torch.device) -> "WideEdges":
        """The same on ``device``."""
        return WideEdges(edges=self.edges.to(device), halo=None if self.halo is None else self.halo.to(device))


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """Rows of one or many graphs, graph after graph as ``layout`` says.

    ``node_ids`` are unique in the data set and the same on every rank: they, with ``draw``, decide what dropout drops.
    ``x``, ``degree`` and ``node_ids`` are always there; the rest is None or empty where the model has no need of it
    (``workers.model_specs.needs``). ``buckets`` and ``paths`` have the rows that attend here, which are the own rows
    unless ranks share heads.
    """

    x: Tensor  # [n, F]
    degree: Tensor  # int64 [n], in-degrees in the whole graph
    node_ids: Tensor  # int64 [n]
    layout: RowLayout
    draw: int = 0
    graph_ids: Tensor | None = None  # int64 [g], numbers of the graphs in the data set
    graph_node_ids: tuple[Tensor, ...] = ()  # of graph g: int64 [N_g], ids of all its nodes, shard after shard
    buckets: tuple[PairBuckets, ...] = ()  # of graph g: uint8 [n_g, N_g], distance buckets of (row, node of the graph)
    paths: tuple[Tensor, ...] = ()  # of graph g: uint8 [n_g, N_g, max_distance], 1 + types along a path, then zeros
    edges: RowEdges | None = None
    wide_edges: WideEdges | None = None
    laplacian: Tensor | None = None  # [n, k]
    walks: Tensor | None = None  # [n, steps]
    hops: Tensor | None = None  # [n, hops + 1, F]

    @cached_property
    def graph_indptr(self) -> Tensor:
        """int64 [g + 1]: the rows of graph i are ``graph_indptr[i]:graph_indptr[i + 1]``."""
        layout = self.layout
        ends = [layout.rows(layout.shard, graph).stop for graph in range(layout.num_graphs)]
        return torch.tensor([0, *ends], device=self.x.device)

    @cached_property
    def graph_of_row(self) -> Tensor:
        """int64 [n]."""
        return torch.repeat_interleave(self.graph_indptr.diff(), output_size=len(self.x))

    @cached_property
    def graph_sizes(self) -> Tensor:
        """int64 [g]: nodes of every graph, over all shards."""
        return torch.tensor([sum(graph) for graph in zip(*self.layout.sizes, strict=True)], device=self.x.device)
