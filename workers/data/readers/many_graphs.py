"""Many small graphs out of a few long arrays: how every set of graphs is read, without a loop over its edges."""

import itertools

import numpy as np

from workers.data.edges import from_edges, index_dtype, to_edges
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
    edge_types: np.ndarray | None = None,
) -> tuple[Graph, ...]:
    """Graph g has the nodes ``node_offsets[g]:node_offsets[g + 1]``, and row g of ``y`` and ``split``.

    ``sources`` and ``targets`` count nodes through all graphs; an edge stays within one. Edges are stored both ways,
    each once; the way that is not given, or an edge that is given twice, has the type of the first that is.
    """
    num_nodes = int(node_offsets[-1])
    adjacency = from_edges(sources, targets, num_nodes=num_nodes)
    types = None if edge_types is None else _types_in_order(*adjacency, sources, targets, edge_types)
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
                edge_types=None if types is None else types[begin:end],
            )
        )
    return tuple(graphs)


def offsets_of(sizes: list[int] | np.ndarray) -> np.ndarray:
    """int64 [len + 1]: where each of some runs of ``sizes`` starts, and the end."""
    return np.fromiter(itertools.accumulate(sizes, initial=0), dtype=np.int64, count=len(sizes) + 1)


def _types_in_order(
    indptr: np.ndarray, indices: np.ndarray, sources: np.ndarray, targets: np.ndarray, types: np.ndarray
) -> np.ndarray:
    num_nodes = len(indptr) - 1
    given = np.concatenate([targets * num_nodes + sources, sources * num_nodes + targets])
    order = np.argsort(given, kind="stable")
    into, at = to_edges(indptr, indices)
    first = np.searchsorted(given[order], at * num_nodes + into)
    return np.concatenate([types, types])[order[first]].astype(np.uint8)
