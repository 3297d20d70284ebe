"""The graph that everything trains on: one attributed graph in CSC, and a data set of one or many of them.

Readers make these values, ``store`` keeps them on disk, both runtimes and the probe read them. Nodes are predicted in
one large graph whose nodes are split, or in many small graphs that lie in one part each; graphs as a whole in many.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

TRAIN, VALIDATION, TEST, NO_SPLIT = 0, 1, 2, -1
SPLIT_NAMES = ("train", "val", "test")  # by part
NO_LABEL = -1
NO_TIME = -(2**63)  # of a node that has always been there

# What a graph may carry beside its ends, labels and features: names of fields of ``Graph``.
EDGE_COLUMNS = ("edge_types", "edge_weights", "edge_times", "edge_features")
NODE_COLUMNS = ("node_types", "node_times")

# What is known of a node or graph: one class, several yes-or-no labels, or numbers. Or the links between nodes.
Task = Literal["classes", "multilabel", "regression", "links"]
# What has labels, and parts of the split: every node, or every graph as a whole.
Level = Literal["node", "graph"]


class Features(Protocol):
    """Node features behind one question; ``workers.data.features`` has the dense and the sparse form."""

    @property
    def num_rows(self) -> int:
        """Number of nodes."""

    @property
    def num_features(self) -> int:
        """Length F of every node's vector."""

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """The vectors of ``rows`` as a fresh float32 [len(rows), F]."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The named arrays that this is stored and fingerprinted as."""

    def first_not_finite(self) -> tuple[int, int] | None:
        """(node, feature) of the first NaN or infinity, None when all is finite."""


@dataclass(frozen=True, eq=False)
class Graph:
    """One attributed graph in CSC: the in-neighbours of v are ``indices[indptr[v]:indptr[v + 1]]``, sorted.

    A message flows from an in-neighbour to v. The named sets are undirected: both directions are stored. A neighbour
    stands there twice only where two edges differ in type or time; such are sorted by type, then time.

    What is predicted are its nodes, or the graph as a whole (``GraphDataset.level``): ``y`` and ``split`` have N rows,
    or one. ``y`` is int64 [rows] for classes (NO_LABEL where not known), float32 [rows, T] for T yes-or-no labels or
    numbers (NaN where not known).
    """

    indptr: np.ndarray  # int64 [N + 1]
    indices: np.ndarray  # int32, or int64 where N or E need it [E]
    features: Features
    y: np.ndarray  # of every row, see below
    split: np.ndarray  # int8, of every row: TRAIN, VALIDATION, TEST or NO_SPLIT
    edge_types: np.ndarray | None = None  # uint8 [E], in the order of ``indices``
    edge_weights: np.ndarray | None = None  # float32 [E], finite, not negative
    edge_times: np.ndarray | None = None  # int64 [E]
    edge_features: np.ndarray | None = None  # float32 [E, D], finite
    node_types: np.ndarray | None = None  # uint8 [N]
    node_times: np.ndarray | None = None  # int64 [N], NO_TIME where there is none

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E: directed entries, so an undirected edge counts twice."""
        return len(self.indices)

    def arrays(self) -> dict[str, np.ndarray]:
        """Every array that there is of it, by name: what is fingerprinted, weighed, stored."""
        named = {"indptr": self.indptr, "indices": self.indices, "y": self.y, "split": self.split}
        named |= {f"features.{part}": array for part, array in self.features.arrays().items()}
        return named | self.columns(EDGE_COLUMNS) | self.columns(NODE_COLUMNS)

    def columns(self, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Those of the columns called ``names`` that there are."""
        found = {name: getattr(self, name) for name in names}
        return {name: column for name, column in found.items() if column is not None}

    def in_degrees(self, nodes: np.ndarray) -> np.ndarray:
        """How many in-neighbours each of ``nodes`` has, in the dtype of ``indices``: no node has more than N."""
        return (self.indptr[nodes + 1] - self.indptr[nodes]).astype(self.indices.dtype)


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a graph, to be told from false ones, which lead to another target (``workers.data.links``)."""

    sources: np.ndarray  # int64 [L]
    targets: np.ndarray  # int64 [L]
    split: np.ndarray  # int8 [L]: TRAIN, VALIDATION or TEST
    num_negatives: int  # false targets of each link in training
    num_eval_negatives: int  # and where links are scored
    seed: int  # names those


@dataclass(frozen=True, eq=False)
class GraphDataset:
    """One or many graphs over the same features and classes. Equal ``fingerprint`` means equal content.

    ``num_classes`` is the length of a prediction: classes, yes-or-no labels, or numbers, by ``task``. Edge types are
    0..num_edge_types - 1; there are none where the number is 0. Types of own data have names, by number.
    ``best_accuracy`` is the test accuracy that no method can beat in expectation, where that is known by construction;
    ``notes`` say in plain sentences what was done to the data on its way here.
    """

    name: str
    graphs: tuple[Graph, ...]
    num_features: int
    num_classes: int
    fingerprint: str
    level: Level = "node"
    task: Task = "classes"
    num_edge_types: int = 0
    edge_type_names: tuple[str, ...] = ()
    node_type_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    best_accuracy: float | None = None
    links: Links | None = None  # what is predicted where the task is links

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs."""
        return sum(graph.num_nodes for graph in self.graphs)

    @property
    def num_edges(self) -> int:
        """Directed entries of all graphs."""
        return sum(graph.num_edges for graph in self.graphs)


def has_label(y: np.ndarray) -> np.ndarray:
    """Bool [n]: rows of ``y`` (see ``Graph``) of which something is known."""
    if y.dtype.kind == "f":
        return ~np.isnan(y).all(axis=1)
    return y != NO_LABEL


def rows_to_train(dataset: GraphDataset) -> np.ndarray:
    """Numbers of the nodes, of the links, or of the graphs, that train."""
    if dataset.links is not None:
        return np.flatnonzero(dataset.links.split == TRAIN)
    return np.flatnonzero(np.concatenate([graph.split for graph in dataset.graphs]) == TRAIN)
