"""Small graphs for the tests of the sampled runtime, and the long way from a subgraph to PyG's edge_index."""

from dataclasses import replace

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures
from workers.data.graph import NO_LABEL, NO_SPLIT, TEST, TRAIN, VALIDATION, Graph, GraphDataset


def graph_of_edges(
    edges: list[tuple[int, int]], *, num_nodes: int, directed: bool = True, num_features: int = 3
) -> Graph:
    """A graph of the given source → target pairs; all nodes train, labels alternate."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    indptr, indices = from_edges(ends[:, 0], ends[:, 1], num_nodes=num_nodes, directed=directed)
    rng = np.random.default_rng(0)
    return Graph(
        indptr=indptr,
        indices=indices,
        features=DenseFeatures(rng.standard_normal((num_nodes, num_features)).astype(np.float32)),
        y=np.arange(num_nodes) % 2,
        split=np.full(num_nodes, TRAIN, dtype=np.int8),
    )


def clustered_graph(
    num_nodes: int = 300,
    *,
    num_classes: int = 3,
    num_features: int = 8,
    degree: int = 6,
    seed: int = 0,
    noise: float = 0.2,
) -> Graph:
    """A learnable graph: most neighbours share the class, features point to it; parts are 60, 20, 20 per cent.

    ``noise`` is the part of the pairs of other classes that become edges.
    """
    rng = np.random.default_rng(seed)
    y = rng.integers(num_classes, size=num_nodes)
    sources = rng.integers(num_nodes, size=num_nodes * degree // 2 * 2)
    targets = rng.integers(num_nodes, size=len(sources))
    kept = (y[sources] == y[targets]) | (rng.random(len(sources)) < noise)
    indptr, indices = from_edges(sources[kept], targets[kept], num_nodes=num_nodes)
    x = rng.standard_normal((num_nodes, num_features)) + 1.5 * np.eye(num_classes, num_features)[y]
    return Graph(
        indptr=indptr,
        indices=indices,
        features=DenseFeatures(x.astype(np.float32)),
        y=y,
        split=rng.choice([TRAIN, VALIDATION, TEST], p=[0.6, 0.2, 0.2], size=num_nodes).astype(np.int8),
    )


def typed_dataset(num_nodes: int = 90) -> GraphDataset:
    """Three types of nodes, of which only those of the first are predicted, and two types of edges."""
    graph, rng = clustered_graph(num_nodes, degree=8), np.random.default_rng(1)
    types = rng.integers(3, size=num_nodes).astype(np.uint8)
    kinds = rng.integers(2, size=graph.num_edges).astype(np.uint8)
    graph = replace(
        graph,
        node_types=types,
        edge_types=kinds,
        y=np.where(types == 0, graph.y, NO_LABEL),
        split=np.where(types == 0, graph.split, NO_SPLIT).astype(np.int8),
    )
    names = {"node_type_names": ("paper", "author", "venue"), "edge_type_names": ("to", "of")}
    return build_dataset("typed", graphs=(graph,), num_classes=3, **names)


def in_neighbors(graph: Graph, node: int) -> np.ndarray:
    """The in-neighbours of ``node``."""
    return graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
