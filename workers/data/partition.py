"""Which node goes to which shard: a node order that keeps neighbours together, cut into shards of equal work.

    order     natural   as the data set numbers them
              metis     parts of few cut edges (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998), through pymetis
              greedy    parts grown node by node (Stanton and Kliot, KDD 2012; Nishimura and Ugander, KDD 2013): more
                        cut edges than METIS, and no package
              random    no order at all: what the others are measured against
    balance   rows      every row costs the same: dense attention scores all N keys for each
              edges     a row costs one and its edges one each: attention on edges, message passing

All of it is a function of the graph, the degree and these two names, so every rank finds the same cut by itself. Nodes
keep their numbers in the data set (``NodeCut.nodes``); a shard's rows are numbered in the order of its cut.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np

from planner.errors import PlanInvalidError
from planner.plan import Partition, describe_cuts, describe_partition
from workers.data.edges import indptr_of, targets_of
from workers.data.graph import Graph
from workers.data.graph_encodings.distances import undirected_view
from workers.ops.row_layout import even_cut

NATURAL = Partition()
_RANDOM_SEED = 0
# Of the greedy parts. Ten passes: ten more took 5 % off the halo on Physics, 2 % on WordNet3, 1 % on Tolokers. A part
# may be fuller than even by about 5 % (METIS: 3 %). A node without neighbours goes to the emptiest part.
_PASSES, _SLACK, _FOR_NONE = 10, 0.05, 1e-3


@dataclass(frozen=True, eq=False)
class NodeCut:
    """The nodes of one graph in the order of their places; shard after shard, ``sizes[shard]`` of them each."""

    order: np.ndarray  # int64 [N], the node at each place
    sizes: tuple[int, ...]

    @property
    def starts(self) -> np.ndarray:
        """First place of every shard, and N."""
        return np.cumsum([0, *self.sizes])

    @cached_property
    def place(self) -> np.ndarray:
        """Place of every node, int64 [N]: the inverse of ``order``."""
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(self.order))
        return place

    @cached_property
    def is_natural(self) -> bool:
        """Whether every node is at the place of its number."""
        return bool((self.order == np.arange(len(self.order))).all())

    def nodes(self, shard: int) -> np.ndarray:
        """The nodes of ``shard``, as the data set numbers them, in the order of its rows."""
        return self.order[self.starts[shard] : self.starts[shard + 1]]


class NodeCuts:
    """The cuts of all ``graphs`` of a data set as ``partition`` says, each made when it is first asked for.

    ``num_parts`` is the number of shards that the order is made for: the largest cp degree of the plan. Stages of fewer
    ranks cut the same order, so rows move between stages as runs.
    """

    def __init__(self, graphs: Sequence[Graph], *, partition: Partition = NATURAL, num_parts: int = 1) -> None:
        self._graphs = graphs
        self._partition = partition
        self._num_parts = num_parts
        self._orders: dict[int, _Ordered] = {}
        self._cuts: dict[tuple[int, int], NodeCut] = {}

    def cut(self, graph: int, num_shards: int) -> NodeCut:
        """Graph ``graph`` in ``num_shards`` shards of about equal work; some may be empty.

        Raises ``PlanInvalidError`` for ``metis`` without pymetis.
        """
        key = graph, num_shards
        if key not in self._cuts:
            if graph not in self._orders:
                self._orders[graph] = _in_order(
                    self._graphs[graph], partition=self._partition, num_parts=self._num_parts
                )
            self._cuts[key] = self._orders[graph].cut(num_shards)
        return self._cuts[key]

    def describe(self) -> Partition:
        """The partition with the fingerprint of the cuts of all graphs."""
        if self._partition.follows_from_sizes:
            return describe_partition((graph.num_nodes for graph in self._graphs), cp_degree=self._num_parts)
        cuts = [self.cut(graph, self._num_parts) for graph in range(len(self._graphs))]
        return describe_cuts(digest_of(cuts), order=self._partition.order, balance=self._partition.balance)


def balanced_cut(work: np.ndarray, *, num_shards: int) -> tuple[int, ...]:
    """Sizes of ``num_shards`` runs of ``work`` [N], each border where the sum so far is nearest to its share."""
    so_far = np.cumsum([0, *work])
    shares = so_far[-1] * np.arange(1, num_shards) / num_shards
    after = np.searchsorted(so_far, shares)
    borders = after - (shares - so_far[np.maximum(after - 1, 0)] < so_far[after] - shares)
    return tuple(np.diff([0, *np.maximum(borders, 0), len(work)]).tolist())


def digest_of(cuts: Sequence[NodeCut]) -> str:
    """A fingerprint of the actual cuts: of the order of all nodes and the sizes of all shards."""
    digest = hashlib.sha256(json.dumps([cut.sizes for cut in cuts]).encode())
    for cut in cuts:
        digest.update(np.ascontiguousarray(cut.order, dtype="<i8").tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class _Ordered:
    """The nodes of a graph in order, and the work of each; ``borders`` are the sizes of the parts it was made of."""

    places: np.ndarray
    work: np.ndarray | None  # None: every row alike
    borders: tuple[int, ...] = ()

    def cut(self, num_shards: int) -> NodeCut:
        if self.work is None:
            return NodeCut(self.places, even_cut(len(self.places), num_shards))
        if len(self.borders) == num_shards:  # the parts are balanced, and their borders cut the fewest edges
            return NodeCut(self.places, self.borders)
        return NodeCut(self.places, balanced_cut(self.work[self.places], num_shards=num_shards))


def _in_order(graph: Graph, *, partition: Partition, num_parts: int) -> _Ordered:
    work = None if partition.balance == "rows" else np.diff(graph.indptr) + 1
    if partition.order == "natural":
        return _Ordered(np.arange(graph.num_nodes), work)
    if partition.order == "random":
        return _Ordered(np.random.default_rng(_RANDOM_SEED).permutation(graph.num_nodes), work)
    find_parts = _metis_parts if partition.order == "metis" else _greedy_parts
    parts = find_parts(graph, num_parts=num_parts, work=np.ones(graph.num_nodes, np.int64) if work is None else work)
    borders = tuple(np.bincount(parts, minlength=num_parts).tolist())
    return _Ordered(np.argsort(parts, kind="stable"), work, borders)


def _metis_parts(graph: Graph, *, num_parts: int, work: np.ndarray) -> np.ndarray:
    """The part of every node, int64 [N]. METIS wants no self loops; a graph of no edges or one part needs no METIS."""
    try:
        import pymetis
    except ImportError as error:
        raise PlanInvalidError(
            "the plan's partition has the order 'metis', and pymetis is not installed here: install it on all nodes"
            " (pip install pymetis), or choose the order 'greedy', which needs nothing"
        ) from error
    indptr, indices = undirected_view(graph)
    if num_parts == 1 or not len(indices):
        return np.repeat(np.arange(num_parts), even_cut(graph.num_nodes, num_parts))
    targets = targets_of(indptr)
    apart = indices != targets
    adjacency = pymetis.CSRAdjacency(indptr_of(targets[apart], num_targets=graph.num_nodes), indices[apart])
    _, parts = pymetis.part_graph(num_parts, adjacency, vweights=work.tolist())
    return np.asarray(parts, dtype=np.int64)


def _greedy_parts(graph: Graph, *, num_parts: int, work: np.ndarray) -> np.ndarray:
    """The part of every node, int64 [N]."""
    indptr, indices = undirected_view(graph)
    parts = np.full(graph.num_nodes, -1, dtype=np.int64)
    _grow(indptr, indices, work, num_parts, parts)
    return parts


@numba.njit(nogil=True, cache=True)
def _grow(indptr: np.ndarray, indices: np.ndarray, work: np.ndarray, num_parts: int, parts: np.ndarray) -> None:
    """Each node, in turn, goes where most of its neighbours are, less so the fuller that part; again and again."""
    capacity = work.sum() / num_parts * (1 + _SLACK)
    loads, neighbours = np.empty(num_parts), np.empty(num_parts)
    for _ in range(_PASSES):
        loads[:] = 0
        for node in range(len(parts)):
            neighbours[:] = _FOR_NONE
            for position in range(indptr[node], indptr[node + 1]):
                if parts[indices[position]] >= 0:  # in the first pass, most have none yet
                    neighbours[parts[indices[position]]] += 1
            best = 0
            for part in range(num_parts):
                neighbours[part] *= max(0.0, 1 - loads[part] / capacity)
                if neighbours[part] > neighbours[best]:
                    best = part
            parts[node] = best
            loads[best] += work[node]
