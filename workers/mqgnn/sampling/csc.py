"""What samplers read: the in-edges of every node in CSC form, with weights, times and outside numbers.

A ``Graph`` of the store gives one (``csc_of``), any list of edges gives one (``csc_of_edges``: duplicates and self
loops stay, every weight stays with its edge), and ``reversed_csc`` turns all edges round, for messages along out-edges.
"""

from dataclasses import dataclass, replace

import numpy as np

from workers.data.edges import checked_ids, index_dtype, indptr_of, targets_of
from workers.data.graph import EDGE_COLUMNS, Graph
from workers.errors import DatasetInvalidError
from workers.model_specs.sampled import Direction


@dataclass(frozen=True, eq=False)
class Csc:
    """Edges by target: those into ``v`` are at positions ``indptr[v]:indptr[v + 1]`` and come from ``indices``.

    Sources and targets may be nodes of different kinds. ``weights`` are finite and not negative.
    """

    indptr: np.ndarray  # int64 [targets + 1]
    indices: np.ndarray  # int32, or int64 where nodes or edges need it [E]
    num_sources: int
    edge_ids: np.ndarray | None = None  # the dtype of indices [E]; None: an edge's number is its position
    weights: np.ndarray | None = None  # float32 [E]
    times: np.ndarray | None = None  # int64 [E]

    @property
    def num_targets(self) -> int:
        """Nodes that edges can lead to."""
        return len(self.indptr) - 1

    def edge_numbers(self, positions: np.ndarray) -> np.ndarray:
        """The outside numbers of the edges at ``positions``."""
        return positions if self.edge_ids is None else self.edge_ids[positions]


def csc_of(graph: Graph) -> Csc:
    """The edges of ``graph``, with their weights and times."""
    return Csc(
        graph.indptr,
        graph.indices,
        num_sources=graph.num_nodes,
        weights=graph.edge_weights,
        times=graph.edge_times,
    )


def along(graph: Graph, *, direction: Direction) -> Graph:
    """``graph`` itself, or (``out``) with every edge turned round: a node then hears from those it points to."""
    if direction == "in":
        return graph
    turned = reversed_csc(csc_of(graph))
    columns = {name: column[turned.edge_ids] for name, column in graph.columns(EDGE_COLUMNS).items()}
    return replace(graph, indptr=turned.indptr, indices=turned.indices, **columns)


def csc_of_edges(
    sources: np.ndarray,
    targets: np.ndarray,
    *,
    num_nodes: int,
    weights: np.ndarray | None = None,
    times: np.ndarray | None = None,
) -> Csc:
    """The edges ``sources[e] -> targets[e]`` in any order; ``edge_ids`` name their places in that order.

    Raises ``DatasetInvalidError`` that names the first edge with a wrong id, weight or number of columns.
    """
    sources, targets = checked_ids(sources, targets, num_nodes=num_nodes)
    for name, column in (("weights", weights), ("times", times)):
        if column is not None and len(column) != len(sources):
            raise DatasetInvalidError(f"{len(sources)} edges but {len(column)} {name}: every edge needs one")
    if weights is not None:
        weights = _checked_weights(np.asarray(weights))
    return _sorted_by_target(
        sources,
        targets,
        num_targets=num_nodes,
        num_sources=num_nodes,
        weights=weights,
        times=None if times is None else np.asarray(times, dtype=np.int64),
    )


def reversed_csc(csc: Csc) -> Csc:
    """Every edge turned round; outside numbers, weights and times stay with their edges."""
    turned = _sorted_by_target(
        targets_of(csc.indptr),
        csc.indices,
        num_targets=csc.num_sources,
        num_sources=csc.num_targets,
        weights=csc.weights,
        times=csc.times,
    )
    return turned if csc.edge_ids is None else replace(turned, edge_ids=csc.edge_ids[turned.edge_ids])


def _sorted_by_target(
    sources: np.ndarray,
    targets: np.ndarray,
    *,
    num_targets: int,
    num_sources: int,
    weights: np.ndarray | None,
    times: np.ndarray | None,
) -> Csc:
    order = np.argsort(targets, kind="stable")
    dtype = index_dtype(max(num_sources, num_targets), len(order))
    return Csc(
        indptr=indptr_of(targets, num_targets=num_targets),
        indices=sources[order].astype(dtype),
        num_sources=num_sources,
        edge_ids=order.astype(dtype),
        weights=None if weights is None else weights[order],
        times=None if times is None else times[order],
    )


def _checked_weights(weights: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        edge = int(wrong[0])
        raise DatasetInvalidError(
            f"edge {edge} has the weight {weights[edge]}; weights are finite and not negative (0: never drawn)",
            edge=edge,
        )
    return weights.astype(np.float32)
