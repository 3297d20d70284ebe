"""One worker's scratch memory and the kernels that use it: numbers of nodes, and choices among the edges of a CSC.

Two threads need two of each. The kernels are those of ``numba_kernels`` or their compiled twins, one as good as the
other. A ``Numbering`` takes 8 bytes per node of the graph, an ``EdgeChooser`` at most 17 per neighbour of the node that
has most; relabelling by hashing would lift the first.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from workers.errors import SeedsInvalidError
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.numba_kernels import DUPLICATE, LABOR, UNIFORM, WEIGHTED

Kernels = ModuleType | Any  # numba_kernels, or the object of the same functions that native_kernels makes

RULES = {"uniform": UNIFORM, "weighted": WEIGHTED, "labor": LABOR}
_LAST_GENERATION = 2**31 - 1
NO_TREES = np.empty(0, dtype=np.int32)
NO_WEIGHTS, NO_TIMES = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)


class Numbering:
    """Local numbers of the nodes of one subgraph after the other.

    An entry of the table holds the generation (the subgraph) that wrote it, so nothing is cleared in between.
    """

    def __init__(self, num_nodes: int, *, kernels: Kernels = numba_kernels) -> None:
        self._table = np.zeros(num_nodes, dtype=np.int64)
        self._generation = 0
        self._kernels = kernels
        self.trees = NO_TREES  # of the newest nodes: there is but one

    def begin(self, nodes: np.ndarray) -> None:
        """Forget all numbers and give ``nodes`` [n] int64 theirs, 0 to n − 1. Raises ``SeedsInvalidError``."""
        if self._generation == _LAST_GENERATION:
            self._table[:] = self._generation = 0
        self._generation += 1
        kind, position = self._kernels.enter(nodes, self._table, self._generation)
        if kind:
            raise seed_error(kind, nodes, position=int(position), num_nodes=len(self._table))

    def relabel(
        self, positions: np.ndarray, indices: np.ndarray, *, num_known: int, offsets: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(local numbers int32 of ``indices[positions]``, the nodes among them that had none, by new number)."""
        local, fresh = np.empty(len(positions), dtype=np.int32), np.empty(len(positions) + 1, dtype=indices.dtype)
        num_fresh = self._kernels.relabel(positions, indices, self._table, self._generation, num_known, local, fresh)
        return local, fresh[:num_fresh]

    def keep(self, nodes: np.ndarray, csc: Csc) -> tuple[np.ndarray, np.ndarray]:
        """(offsets, positions) of all edges into ``nodes`` from nodes that have a number."""
        offsets = np.empty(len(nodes) + 1, dtype=np.int64)
        positions = np.empty(self._kernels.count(nodes, csc.indptr, -1, False), dtype=csc.indices.dtype)
        total = self._kernels.keep(nodes, csc.indptr, csc.indices, self._table, self._generation, offsets, positions)
        return offsets, positions[:total]

    def find_columns(self, nodes: np.ndarray, csc: Csc) -> tuple[np.ndarray, np.ndarray]:
        """The sources of edges into ``nodes``, with Σ 1 / (in-degree + 1) over those of ``nodes`` that they reach."""
        self.begin(NO_TIMES)
        capacity = min(self._kernels.count(nodes, csc.indptr, -1, False), csc.num_sources)
        found, sums = np.empty(capacity, dtype=csc.indices.dtype), np.empty(capacity)
        num_found = self._kernels.find_columns(
            nodes, csc.indptr, csc.indices, self._table, self._generation, found, sums
        )
        return found[:num_found], sums[:num_found]


@dataclass(frozen=True, eq=False)
class Streams:
    """Where the random numbers of a subgraph come from: one stream, or one for each of its trees."""

    keys: np.ndarray  # uint64 [trees]
    limits: np.ndarray  # int64 [trees]: no edge later than that; empty: no limit


class EdgeChooser:
    """Chooses in-edges of nodes in one CSC, by one rule."""

    def __init__(
        self, csc: Csc, *, rule: int = UNIFORM, with_replacement: bool = False, kernels: Kernels = numba_kernels
    ) -> None:
        self.csc = csc
        self._rule, self._with_replacement, self._kernels = rule, with_replacement, kernels
        largest = int(np.diff(csc.indptr).max(initial=0))
        self._eligible = np.empty(largest if rule == WEIGHTED or csc.times is not None else 0, dtype=np.int64)
        self._numbers = np.empty(largest if rule == WEIGHTED else 0)
        self._taken = np.zeros(largest // 64 + 1, dtype=np.uint64)  # one bit per neighbour of one node
        self._weights = NO_WEIGHTS if csc.weights is None else csc.weights
        self._times = NO_TIMES if csc.times is None else csc.times

    def choose(
        self, nodes: np.ndarray, *, fanout: int, streams: Streams, trees: np.ndarray = NO_TREES
    ) -> tuple[np.ndarray, np.ndarray]:
        """(offsets int64 [len(nodes) + 1], positions of the chosen edges in the CSC arrays)."""
        csc, unbounded = self.csc, self._rule == LABOR
        capacity = self._kernels.count(nodes, csc.indptr, -1 if unbounded else fanout, self._with_replacement)
        offsets = np.empty(len(nodes) + 1, dtype=np.int64)
        positions = np.empty(capacity, dtype=csc.indices.dtype)
        total = self._kernels.draw(
            nodes,
            trees,
            streams.keys,
            streams.limits,
            csc.indptr,
            csc.indices,
            self._weights,
            self._times,
            fanout,
            self._rule,
            self._with_replacement,
            self._eligible,
            self._numbers,
            self._taken,
            offsets,
            positions,
        )
        return offsets, positions[:total]


def seed_error(kind: int, seeds: np.ndarray, *, position: int, num_nodes: int) -> SeedsInvalidError:
    """The error that says what is wrong with the seed at ``position``."""
    node = int(seeds[position])
    if kind == DUPLICATE:
        return SeedsInvalidError(
            f"node {node} is given twice among {len(seeds)} seeds (again at position {position}); a loss would"
            " count it twice: pass every seed once",
            node=node,
            position=position,
        )
    return SeedsInvalidError(
        f"seed {node} at position {position} is no node: the graph has nodes 0 to {num_nodes - 1}",
        node=node,
        position=position,
    )
