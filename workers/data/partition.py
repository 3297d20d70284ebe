"""Which node goes to which shard: a node order that keeps neighbours together, cut into shards of equal work.

    order     natural   as the data set numbers them
              metis     parts of few cut edges (Karypis and Kumar, SIAM J. Sci. Comput. 20(1), 1998), through pymetis
              bfs       reverse Cuthill-McKee, a breadth-first order of small bandwidth (SIAM J. Numer. Anal. 13, 1976)
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

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from planner.errors import PlanInvalidError
from planner.plan import Balance, NodeOrder
from workers.data.distances import undirected_view
from workers.data.graph import Graph
from workers.ops.row_layout import even_cut

_RANDOM_SEED = 0


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

    def nodes(self, shard: int) -> np.ndarray:
        """The nodes of ``shard``, as the data set numbers them, in the order of its rows."""
        return self.order[self.starts[shard] : self.starts[shard + 1]]


def cut_nodes(graph: Graph, *, num_shards: int, order: NodeOrder = "natural", balance: Balance = "rows") -> NodeCut:
    """Order the nodes of ``graph`` and cut them into ``num_shards`` shards of about equal work.

    Shards may be empty where there are fewer nodes. Raises ``PlanInvalidError`` for ``metis`` without pymetis.
    """
    work = None if balance == "rows" else np.diff(graph.indptr) + 1
    if order == "metis":
        parts = _metis_parts(graph, num_shards=num_shards, work=work)
        places = np.argsort(parts, kind="stable")
        if work is not None:  # METIS has balanced the edges; its borders are the best ones
            return NodeCut(places, tuple(np.bincount(parts, minlength=num_shards).tolist()))
    else:
        places = _places(graph, order)
    sizes = even_cut(graph.num_nodes, num_shards) if work is None else balanced_cut(work[places], num_shards=num_shards)
    return NodeCut(places, sizes)


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


def _places(graph: Graph, order: NodeOrder) -> np.ndarray:
    if order == "natural":
        return np.arange(graph.num_nodes)
    if order == "random":
        return np.random.default_rng(_RANDOM_SEED).permutation(graph.num_nodes)
    indptr, indices = undirected_view(graph)
    matrix = csr_array((np.ones(len(indices), dtype=np.int8), indices, indptr), shape=(graph.num_nodes,) * 2)
    return reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(np.int64)


def _metis_parts(graph: Graph, *, num_shards: int, work: np.ndarray | None) -> np.ndarray:
    """The part of every node, int64 [N]. METIS wants no self loops; a graph of no edges or one part needs no METIS."""
    try:
        import pymetis
    except ImportError as error:
        raise PlanInvalidError(
            "the plan's partition has the order 'metis', and pymetis is not installed here: install it on all nodes"
            " (pip install pymetis), or choose the order 'bfs', which needs nothing"
        ) from error
    indptr, indices = undirected_view(graph)
    if num_shards == 1 or not len(indices):
        return np.repeat(np.arange(num_shards), even_cut(graph.num_nodes, num_shards))
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(indptr))
    apart = indices != targets
    starts = np.concatenate([[0], np.cumsum(np.bincount(targets[apart], minlength=graph.num_nodes))])
    weights = None if work is None else work.tolist()
    _, parts = pymetis.part_graph(num_shards, pymetis.CSRAdjacency(starts, indices[apart]), vweights=weights)
    return np.asarray(parts, dtype=np.int64)
