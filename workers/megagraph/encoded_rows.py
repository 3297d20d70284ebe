"""What a model asks to know of a graph besides features and degrees, for the rows of one shard (``Needs``).

Each rank computes that of its own rows, in the order of the cut, on its compute threads. What is searched or walked in
a data set's only graph is kept in the cache, by shard, and mapped: the next run with this cut, a restart among them,
searches no more. Rows of many small graphs take less time to make than to look up. Laplacian eigenvectors are those of
the whole graph, and within equal eigenvalues their basis is the solver's: they are always computed once and read from
the cache by everyone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.data.graph import Graph, GraphDataset
from workers.data.graph_encodings.distances import distance_buckets, pairs_within
from workers.data.graph_encodings.edge_paths import edge_paths
from workers.data.graph_encodings.hops import hop_features
from workers.data.graph_encodings.laplacian import laplacian_eigenvectors
from workers.data.graph_encodings.stored import Encode, stored
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

    ``paths`` says where encodings are kept; without it they are computed here, for a process that is alone.
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
            buckets=self._pairs(graph, place=_place(cut), attending=attending),
            paths=self._paths_of(graph, place=_place(cut), attending=attending),
            edges=shard_edges(graph, cut=cut, shard=shard).to(self._device) if needs.edges else None,
            widened=widened_edges(graph, needs=needs, cut=cut, shard=shard).to(self._device) if wide else None,
            laplacian=self._laplacian(index, nodes),
            walks=self._numbers(*self._kept(return_probabilities, graph, num_steps=needs.walk_length, rows=nodes))
            if needs.walk_length
            else None,
            hops=None
            if needs.num_hops is None
            else self._numbers(
                hop_features(graph, num_hops=needs.num_hops, rows=nodes, num_threads=torch.get_num_threads())
            ),
        )

    def _kept(self, encode: Encode, graph: Graph, **parameters: Any) -> tuple[np.ndarray, ...]:
        """``encode`` of ``graph``: from the cache where it is the only one."""
        if self._paths is not None and len(self._graphs) == 1:
            return stored(encode, self._graphs, paths=self._paths, num_threads=torch.get_num_threads(), **parameters)[0]
        found = encode(graph, **parameters, num_threads=torch.get_num_threads())
        return found if isinstance(found, tuple) else (found,)

    def _pairs(self, graph: Graph, *, place: np.ndarray | None, attending: np.ndarray) -> PairBuckets | None:
        max_distance = self._needs.max_distance
        if max_distance is None:
            return None
        encode = pairs_within if self._needs.near_pairs else distance_buckets
        found = self._kept(encode, graph, rows=attending, max_distance=max_distance, place=place)
        arrays = [torch.from_numpy(array).to(self._device) for array in found]
        if not self._needs.near_pairs:
            return arrays[0]
        return NearPairs(*arrays, far=max_distance + 1, num_columns=graph.num_nodes)

    def _paths_of(self, graph: Graph, *, place: np.ndarray | None, attending: np.ndarray) -> Tensor | None:
        max_distance = self._needs.max_distance
        if not self._needs.edge_paths or max_distance is None:
            return None
        (paths,) = self._kept(edge_paths, graph, rows=attending, max_distance=max_distance, place=place)
        return torch.from_numpy(paths).to(self._device)

    def _laplacian(self, index: int, nodes: np.ndarray) -> Tensor | None:
        size = self._needs.laplacian_size
        if not size:
            return None
        if self._paths is None:
            return self._numbers(laplacian_eigenvectors(self._graphs[index], k=size).vectors[nodes])
        if self._eigenvectors is None:
            self._eigenvectors = stored(laplacian_eigenvectors, self._graphs, paths=self._paths, k=size)
        return self._numbers(self._eigenvectors[index][1][nodes])

    def _numbers(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(rows)).to(device=self._device, dtype=self._dtype)


def _place(cut: NodeCut) -> np.ndarray | None:
    """Where each node stands in the order of ``cut``, None for its own number."""
    return None if cut.is_natural else cut.place
