"""Relations: kinds of edges told apart by the type of the source, the type of the edge, and the type of the target.

A graph carries types of nodes and of edges by number; a data set knows their names. What has no types is of one type.
"""

import numpy as np

from workers.data.edges import targets_of
from workers.data.graph import Graph, GraphDataset
from workers.model_specs.sampled import Relation

MOST_RELATIONS = 254  # their numbers are types of edges


def relation_of_edges(graph: Graph) -> np.ndarray:
    """int64 [E]: the number of each edge's relation among those that ``graph`` has (``relations_of`` names them)."""
    return np.unique(_codes(graph), return_inverse=True)[1].reshape(-1)


def relations_of(dataset: GraphDataset) -> tuple[Relation, ...]:
    """The names of the relations of the only graph of ``dataset``, by number."""
    (graph,) = dataset.graphs
    nodes = dataset.node_type_names or tuple(map(str, range(_count(graph.node_types))))
    edges = dataset.edge_type_names or tuple(map(str, range(_count(graph.edge_types))))
    found = []
    for code in np.unique(_codes(graph)).tolist():
        source, rest = divmod(code, _BASE * _BASE)
        kind, target = divmod(rest, _BASE)
        found.append((nodes[source], edges[kind], nodes[target]))
    return tuple(found)


def node_type_names(dataset: GraphDataset) -> tuple[str, ...]:
    """The names of the types of nodes, by number."""
    return dataset.node_type_names or tuple(map(str, range(_count(dataset.graphs[0].node_types))))


_BASE = 256  # types are uint8


def _codes(graph: Graph) -> np.ndarray:
    nodes = np.zeros(graph.num_nodes, dtype=np.int64) if graph.node_types is None else graph.node_types.astype(np.int64)
    edges = 0 if graph.edge_types is None else graph.edge_types.astype(np.int64)
    return (nodes[graph.indices] * _BASE + edges) * _BASE + nodes[targets_of(graph.indptr)]


def _count(types: np.ndarray | None) -> int:
    return 1 if types is None else int(types.max(initial=0)) + 1
