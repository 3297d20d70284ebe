"""Many small graphs out of a few long arrays: how every set of graphs is read, without a loop over its edges."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from workers.data.edge_columns import NO_COLUMNS, EdgeColumns, from_edge_table
from workers.data.edges import index_dtype
from workers.data.features import DenseFeatures, SparseFeatures, windows
from workers.data.graph import Graph


def cut_graphs(
    *,
    node_offsets: np.ndarray,
    sources: np.ndarray,
    targets: np.ndarray,
    features: DenseFeatures | SparseFeatures,
    y: np.ndarray,
    split: np.ndarray,
    columns: EdgeColumns = NO_COLUMNS,
    node_columns: Mapping[str, np.ndarray | None] = MappingProxyType({}),
    directed: bool = False,
) -> tuple[Graph, ...]:
    """Graph g has the nodes ``node_offsets[g]:node_offsets[g + 1]``, and row g of ``y`` and ``split``.

    ``sources`` and ``targets`` count nodes through all graphs; an edge stays within one (``edge_columns``). So do
    ``node_columns``, by the names of ``Graph``.
    """
    adjacency, columns = from_edge_table(
        sources, targets, num_nodes=int(node_offsets[-1]), columns=columns, directed=directed
    )
    graphs = []
    for number, part in enumerate(windows(features, offsets=node_offsets)):
        first, last = int(node_offsets[number]), int(node_offsets[number + 1])
        begin, end = int(adjacency.indptr[first]), int(adjacency.indptr[last])
        local = adjacency.indices[begin:end] - first
        graphs.append(
            Graph(
                indptr=adjacency.indptr[first : last + 1] - begin,
                indices=local.astype(index_dtype(last - first, end - begin)),
                features=part,
                y=y[number : number + 1],
                split=split[number : number + 1],
                **columns.map(lambda column, begin=begin, end=end: column[begin:end]).fields(),
                **{name: None if column is None else column[first:last] for name, column in node_columns.items()},
            )
        )
    return tuple(graphs)


def offsets_of(sizes: list[int] | np.ndarray) -> np.ndarray:
    """int64 [len + 1]: where each of some runs of ``sizes`` starts, and the end."""
    return np.fromiter(itertools.accumulate(sizes, initial=0), dtype=np.int64, count=len(sizes) + 1)
