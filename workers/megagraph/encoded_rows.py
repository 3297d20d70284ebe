"""What a model asks to know of a graph besides features and degrees, for the rows of one shard (``Needs``).

Each rank computes that of its own rows, in the order of the cut. Laplacian eigenvectors are those of the whole graph,
and within equal eigenvalues their basis is the solver's: they are computed once and read from the cache by everyone.
Near pairs of a data set's only graph are kept there as well, by shard, and mapped: the next run with this cut, a
restart among them, searches no more.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.data.graph import Graph, GraphDataset
from workers.data.graph_encodings.distances import PairIndex, distance_buckets, pairs_within
from workers.data.graph_encodings.edge_paths import edge_paths
from workers.data.graph_encodings.hops import hop_features
from workers.data.graph_encodings.laplacian import laplacian_eigenvectors
from workers.data.graph_encodings.stored import stored
from workers.data.graph_encodings.walks import return_probabilities
from workers.data.partition import NodeCut
from workers.data.paths import DataPaths
from workers.data.shard_edges import shard_edges
from workers.megagraph.wide_edges import widened_edges
from workers.model_specs.needs import Needs
from workers.ops.near_pairs import NearPairs, PairBuckets
from workers.ops.row_edges import RowEdges


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """Of the own rows n, or of the rows that attend here a (``workers.models.graph_batch.GraphBatch``), of N nodes."""

    buckets: PairBuckets | None  # uint8 [a, N]
    paths: Tensor | None  # uint8 [a, N, max_distance]
    edges: RowEdges | None
    widened: RowEdges | None  # with the expander's, without global nodes
    laplacian: Tensor | None  # [n, k]
    walks: Tensor | None  # [n, steps]
    hops: Tensor | None  # [n, hops + 1, F]


class RowEncoder:
    """Encodes rows of the graphs of ``dataset`` as ``needs`` says; numbers become ``dtype`` on ``device``.

    ``paths`` says where eigenvectors and near pairs are kept; without it they are computed here, for a process that is
    alone.
    """

    def __init__(
        self,
        dataset: GraphDataset,
        *,
        needs: Needs,
        dtype: torch.dtype,
        device: torch.device,
        paths: DataPaths | None = None,
    ) -> None:
        self._graphs = dataset.graphs
        self._needs = needs
        self._dtype = dtype
        self._device = device
        self._paths = paths
        self._eigenvectors: list[tuple[np.ndarray, ...]] | None = None

    def encode(self, index: int, *, cut: NodeCut, shard: int, attending: np.ndarray) -> EncodedRows:
        """Of graph ``index``: own rows are those of ``shard`` of ``cut``, ``attending`` the nodes that attend here."""
        graph, needs, nodes = self._graphs[index], self._needs, cut.nodes(shard)
        wide = needs.expander_degree > 0 or needs.num_global > 0
        return EncodedRows(
            buckets=self._pairs(graph, cut=cut, attending=attending),
            paths=self._paths_of(graph, cut=cut, attending=attending),
            edges=shard_edges(graph, cut=cut, shard=shard).to(self._device) if needs.edges else None,
            widened=widened_edges(graph, needs=needs, cut=cut, shard=shard).to(self._device) if wide else None,
            laplacian=self._laplacian(index, nodes),
            walks=self._numbers(return_probabilities(graph, num_steps=needs.walk_length, rows=nodes))
            if needs.walk_length
            else None,
            hops=None
            if needs.num_hops is None
            else self._numbers(hop_features(graph, num_hops=needs.num_hops, rows=nodes)),
        )

    def _pairs(self, graph: Graph, *, cut: NodeCut, attending: np.ndarray) -> PairBuckets | None:
        max_distance = self._needs.max_distance
        if max_distance is None:
            return None
        if not self._needs.near_pairs:
            return self._bytes(distance_buckets(graph, rows=attending, max_distance=max_distance), cut=cut)
        asked: dict[str, Any] = {
            "rows": attending,
            "max_distance": max_distance,
            "place": None if cut.is_natural else cut.place,
        }
        if self._paths is None or len(self._graphs) > 1:
            near = pairs_within(graph, **asked)
        else:
            near = PairIndex(*stored(pairs_within, self._graphs, paths=self._paths, **asked)[0])
        return NearPairs(
            *(torch.from_numpy(array).to(self._device) for array in near),
            far=max_distance + 1,
            num_columns=graph.num_nodes,
        )

    def _paths_of(self, graph: Graph, *, cut: NodeCut, attending: np.ndarray) -> Tensor | None:
        if not self._needs.edge_paths or self._needs.max_distance is None:
            return None
        return self._bytes(edge_paths(graph, rows=attending, max_distance=self._needs.max_distance), cut=cut)

    def _laplacian(self, index: int, nodes: np.ndarray) -> Tensor | None:
        size = self._needs.laplacian_size
        if not size:
            return None
        if self._paths is None:
            return self._numbers(laplacian_eigenvectors(self._graphs[index], k=size).vectors[nodes])
        if self._eigenvectors is None:
            self._eigenvectors = stored(laplacian_eigenvectors, self._graphs, paths=self._paths, k=size)
        return self._numbers(self._eigenvectors[index][1][nodes])

    def _bytes(self, pairs: np.ndarray, *, cut: NodeCut) -> Tensor:
        """Columns in the order of the cut."""
        ordered = pairs if cut.is_natural else pairs[:, cut.order]
        return torch.from_numpy(np.ascontiguousarray(ordered)).to(self._device)

    def _numbers(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(device=self._device, dtype=self._dtype)
