"""A set of graphs as one graph of as many parts: what samplers, and passes over all nodes, take."""

from dataclasses import replace

import numpy as np

from workers.data.edges import index_dtype
from workers.data.features import concatenate
from workers.data.graph import NO_LABEL, NO_SPLIT, Graph, GraphDataset


def node_offsets(dataset: GraphDataset) -> np.ndarray:
    """int64 [graphs + 1]: where the nodes of each graph begin among those of all."""
    return np.cumsum([0, *(graph.num_nodes for graph in dataset.graphs)])


def as_one_graph(dataset: GraphDataset) -> Graph:
    """All graphs of ``dataset`` side by side, copied where they are several; without edge types.

    Where graphs are predicted, its nodes have no labels and lie in no part.
    """
    graphs = dataset.graphs
    if dataset.level == "node":
        y, split = (np.concatenate([getattr(graph, name) for graph in graphs]) for name in ("y", "split"))
    else:
        y = np.full(dataset.num_nodes, NO_LABEL, dtype=np.int64)
        split = np.full(dataset.num_nodes, NO_SPLIT, dtype=np.int8)
    if len(graphs) == 1:
        return graphs[0] if dataset.level == "node" else replace(graphs[0], y=y, split=split)
    offsets = node_offsets(dataset)
    edges = np.cumsum([0, *(graph.num_edges for graph in graphs)])
    indptr = [graph.indptr[1:] + begin for graph, begin in zip(graphs, edges[:-1], strict=True)]
    dtype = index_dtype(dataset.num_nodes, dataset.num_edges)
    indices = [graph.indices.astype(dtype) + dtype.type(first) for graph, first in zip(graphs, offsets, strict=False)]
    return Graph(
        indptr=np.concatenate([np.zeros(1, dtype=np.int64), *indptr]),
        indices=np.concatenate(indices),
        features=concatenate(tuple(graph.features for graph in graphs)),
        y=y,
        split=split,
    )
