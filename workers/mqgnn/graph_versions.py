"""A graph that changes while it is trained on: every change makes a new version, and a mini-batch sees one version.

    add_edges, remove_edges, update_features ─▶ listeners (caches drop what the change touches) ─▶ the new version

A version never changes, so whoever works on an older one goes on undisturbed; the next mini-batch is sampled from the
newest. Replicas make the same changes, each by itself, between the same two steps. Nodes stay as they are, and edges
carry nothing but their ends.

Limits: a change of edges copies all of them, one of features all that are held here; an ``Evaluator`` belongs to the
version it was made for. Lists of free places per node would lift the first.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from workers.data.edges import Adjacency, from_edges, index_dtype, to_edges
from workers.data.features import DenseFeatures, SparseFeatures, check_rows
from workers.data.graph import EDGE_COLUMNS, Graph
from workers.errors import DatasetInvalidError
from workers.mqgnn.sampling.named import Sampler


@dataclass(frozen=True, eq=False)
class GraphVersion:
    """``graph`` after ``number`` changes."""

    number: int
    graph: Graph


@dataclass(frozen=True, eq=False)
class Change:
    """What is different in version ``number``: the in-edges of ``targets``, or the features of ``rows``."""

    number: int
    targets: np.ndarray
    rows: np.ndarray


_NOBODY = np.empty(0, dtype=np.int64)


class ChangingGraph:
    """``graph`` and what becomes of it. Changes may come from any thread, one after the other."""

    def __init__(self, graph: Graph) -> None:
        self._now = GraphVersion(0, graph)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[Change], None]] = []

    @property
    def now(self) -> GraphVersion:
        """The newest version."""
        return self._now

    def tell(self, listener: Callable[[Change], None]) -> None:
        """Have ``listener`` called with every change, before anybody sees the new version."""
        with self._lock:
            self._listeners.append(listener)

    def add_edges(self, sources: np.ndarray, targets: np.ndarray, *, directed: bool = False) -> int:
        """Add the edges ``sources[e] -> targets[e]``, both ways unless ``directed``. Returns the version's number.

        Self loops are dropped and edges that are there already are left; where nothing is new, the version stays.
        Raises ``DatasetInvalidError`` for an id that is no node's, and for a graph whose edges carry types, weights or
        the like.
        """
        with self._lock:
            graph = self._plain_graph()
            fresh = _sorted_edges(sources, targets, graph=graph, directed=directed)
            places, is_there = _find(graph, *fresh)
            new_sources, new_targets, places = (array[~is_there] for array in (*fresh, places))
            indices = np.insert(graph.indices, places, new_sources)
            return self._relink(graph, indices, changed=new_targets, by=1)

    def remove_edges(self, sources: np.ndarray, targets: np.ndarray, *, directed: bool = False) -> int:
        """Remove the edges ``sources[e] -> targets[e]``, both ways unless ``directed``. Returns the version's number.

        Raises ``DatasetInvalidError`` that names the first edge that is not there, and as ``add_edges``.
        """
        with self._lock:
            graph = self._plain_graph()
            gone = _sorted_edges(sources, targets, graph=graph, directed=directed)
            places, is_there = _find(graph, *gone)
            if not is_there.all():
                missing = int(np.flatnonzero(~is_there)[0])
                source, target = (int(ends[missing]) for ends in gone)
                raise DatasetInvalidError(
                    f"edge {source} -> {target} cannot be removed: it is not in the graph (version {self._now.number})",
                    source=source,
                    target=target,
                )
            return self._relink(graph, np.delete(graph.indices, places), changed=gone[1], by=-1)

    def update_features(self, rows: np.ndarray, values: np.ndarray) -> int:
        """Give the nodes ``rows``, each named once, the features ``values`` [len(rows), F]. Returns the number.

        Features that are dealt out to replicas are updated by each of them, with all rows. Raises
        ``DatasetInvalidError``.
        """
        with self._lock:
            graph, rows = self._now.graph, np.asarray(rows, dtype=np.int64)
            values = _checked_values(graph, rows, np.asarray(values))
            features = graph.features
            if isinstance(features, DenseFeatures | SparseFeatures):
                graph = replace(graph, features=features.replaced(rows, values))
            else:
                features.update(rows, values)
            return self._publish(graph, targets=_NOBODY, rows=rows) if len(rows) else self._now.number

    def _plain_graph(self) -> Graph:
        graph = self._now.graph
        if carried := graph.columns(EDGE_COLUMNS):
            raise DatasetInvalidError(
                f"edges that carry {', '.join(carried)} cannot be added or removed: a new edge would have none."
                " Make the data set anew"
            )
        return graph

    def _relink(self, graph: Graph, indices: np.ndarray, *, changed: np.ndarray, by: int) -> int:
        if not len(changed):
            return self._now.number
        indptr = graph.indptr.copy()
        indptr[1:] += by * np.cumsum(np.bincount(changed, minlength=graph.num_nodes))
        linked = replace(
            graph, indptr=indptr, indices=indices.astype(index_dtype(graph.num_nodes, len(indices)), copy=False)
        )
        return self._publish(linked, targets=np.unique(changed), rows=_NOBODY)

    def _publish(self, graph: Graph, *, targets: np.ndarray, rows: np.ndarray) -> int:
        change = Change(self._now.number + 1, targets=targets, rows=rows)
        for listener in self._listeners:
            listener(change)
        self._now = GraphVersion(change.number, graph)
        return change.number


class NewestSampler:
    """A sampler of the newest version of ``graphs``, which ``build`` makes anew when edges have changed."""

    def __init__(self, graphs: ChangingGraph, *, build: Callable[[Graph], Sampler]) -> None:
        self._graphs, self._build = graphs, build
        self._graph = graphs.now.graph
        self._sampler = build(self._graph)

    def now(self) -> tuple[GraphVersion, Sampler]:
        """The newest version, and its sampler."""
        version = self._graphs.now
        if version.graph.indices is not self._graph.indices:
            self._graph, self._sampler = version.graph, self._build(version.graph)
        return version, self._sampler


def _sorted_edges(
    sources: np.ndarray, targets: np.ndarray, *, graph: Graph, directed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(sources, targets) by target, then source, each edge once and no self loop."""
    made: Adjacency = from_edges(sources, targets, num_nodes=graph.num_nodes, directed=directed)
    return to_edges(*made)


def _find(graph: Graph, sources: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(where each edge is in ``graph.indices`` or would be, whether it is there): a bisection in all rows at once."""
    low, end = graph.indptr[targets], graph.indptr[targets + 1]
    high, last = end.copy(), max(0, graph.num_edges - 1)
    while (is_open := low < high).any():
        middle = (low + high) // 2
        is_less = is_open & (graph.indices[np.minimum(middle, last)] < sources)
        low, high = np.where(is_less, middle + 1, low), np.where(is_open & ~is_less, middle, high)
    is_there = low < end
    is_there[is_there] = graph.indices[low[is_there]] == sources[is_there]
    return low, is_there


def _checked_values(graph: Graph, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``values`` as float32, finite, a row for each of ``rows``, which exist and are named once."""
    check_rows(rows, num_rows=graph.num_nodes)
    wanted = (len(rows), graph.features.num_features)
    if values.shape != wanted:
        raise DatasetInvalidError(f"new features of {wanted[0]} nodes are {list(wanted)} numbers; found {values.shape}")
    if len(np.unique(rows)) < len(rows):
        node = int(np.flatnonzero(np.bincount(rows) > 1)[0])
        raise DatasetInvalidError(f"node {node} is given new features twice; name every node once", node=node)
    if not np.isfinite(values).all():
        place = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise DatasetInvalidError(f"the new features of node {rows[place]} are not finite", node=int(rows[place]))
    return values.astype(np.float32)
