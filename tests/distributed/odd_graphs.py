"""Small graphs that break careless code: isolated nodes, self loops, parts that do not touch, one node, a star."""

from collections.abc import Sequence

import numpy as np

from workers.data.edges import from_edges
from workers.data.features import DenseFeatures
from workers.data.graph import NO_LABEL, TEST, TRAIN, VALIDATION, Graph, GraphDataset

NUM_FEATURES, NUM_CLASSES = 6, 3
Edges = Sequence[tuple[int, int]]

STAR: Edges = [(0, leaf) for leaf in range(1, 10)]
PATH_AND_ISOLATED: Edges = [(0, 1), (1, 2), (2, 3)]  # nodes 4..6 have no neighbour
TWO_PARTS: Edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6), (6, 3)]


def random_edges(num_nodes: int, num_edges: int, *, seed: int) -> Edges:
    """Edges drawn uniformly, doubles and self loops among them."""
    return np.random.default_rng(seed).integers(num_nodes, size=(num_edges, 2)).tolist()


def build_graph(num_nodes: int, edges: Edges, *, seed: int, split: np.ndarray | None = None) -> Graph:
    """A graph with random features and classes; without ``split`` all its nodes are training nodes."""
    generator = np.random.default_rng(seed)
    ends = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    indptr, indices = from_edges(ends[:, 0], ends[:, 1], num_nodes=num_nodes)
    return Graph(
        indptr=indptr,
        indices=indices,
        features=DenseFeatures(generator.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32)),
        y=generator.integers(NUM_CLASSES, size=num_nodes),
        split=np.full(num_nodes, TRAIN, dtype=np.int8) if split is None else split,
    )


def with_self_loops(graph: Graph, nodes: Sequence[int]) -> Graph:
    """``graph`` with a self loop at each of ``nodes``, as a store written elsewhere may hold them."""
    lists = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]].tolist() for v in range(graph.num_nodes)]
    for node in nodes:
        lists[node] = sorted([*lists[node], node])
    return Graph(
        indptr=np.cumsum([0, *map(len, lists)]),
        indices=np.asarray([source for sources in lists for source in sources], dtype=np.int32),
        features=graph.features,
        y=graph.y,
        split=graph.split,
    )


def build_set(graphs: Sequence[Graph]) -> GraphDataset:
    """A data set of ``graphs``."""
    return GraphDataset(
        name="odd", graphs=tuple(graphs), num_features=NUM_FEATURES, num_classes=NUM_CLASSES, fingerprint="odd"
    )


def odd_set() -> GraphDataset:
    """Seven training graphs of uneven size, none with a size that four ranks share evenly; some smaller than 4."""
    unlabelled = build_graph(6, [(0, 1), (2, 3)], seed=7)
    unlabelled.y[:3] = NO_LABEL
    return build_set(
        [
            build_graph(10, STAR, seed=1),
            build_graph(1, [], seed=2),
            build_graph(7, PATH_AND_ISOLATED, seed=3),
            build_graph(7, TWO_PARTS, seed=4),
            with_self_loops(build_graph(5, [(0, 1), (1, 2)], seed=5), [0, 3]),
            build_graph(3, [(0, 2)], seed=6),
            unlabelled,
        ]
    )


def one_graph(num_nodes: int = 37) -> GraphDataset:
    """One graph whose nodes are split; with self loops, and most pairs farther apart than the distance limit."""
    generator = np.random.default_rng(0)
    split = generator.choice([TRAIN, VALIDATION, TEST], size=num_nodes, p=[0.5, 0.2, 0.3]).astype(np.int8)
    graph = build_graph(num_nodes, random_edges(num_nodes, 2 * num_nodes, seed=11), seed=12, split=split)
    return build_set([with_self_loops(graph, [0, num_nodes - 1])])
