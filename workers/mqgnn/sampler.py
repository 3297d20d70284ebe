"""Uniform neighbour sampling without replacement over a CSC graph (Hamilton et al., NeurIPS 2017, section 3.1).

In: seeds, one fanout per hop (nearest first; −1 takes all neighbours), a stream key. Out: a ``SampledSubgraph`` whose
nodes are ordered by hop and whose in-edges form one CSR matrix in that order, so that the block of every layer is a
prefix of it. A node is expanded once, at the hop after the one that met it first, with the fanout of that hop.

What is drawn for a node depends on the stream key and the node alone (not on the hop, the other seeds, the thread):
the same mini-batch gives the same subgraph for any number of workers, and where all fanouts are equal, replicas that
share a mini-batch draw together what one process would.

Three passes per hop, each over flat arrays: choose positions (Floyd's selection: ``fanout`` draws per node whatever
its degree), fetch the neighbours (independent loads, which the processor overlaps), relabel them by a scratch table.
The scratch table takes 4 bytes per node of the graph and sampler; relabelling by hashing would lift that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from workers.data.graph import Graph
from workers.errors import SeedsInvalidError
from workers.mqgnn.counter_rng import draw_below, mix64

ALL_NEIGHBORS = -1
_ABSENT = np.int32(-1)
_DUPLICATE, _OUT_OF_RANGE = 1, 2  # faults of a seed
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class SampledSubgraph:
    """The sampled neighbourhood of some seeds, in local numbers: node ``i`` of it is ``node_ids[i]`` of the graph.

    ``node_ids`` [n] starts with the seeds in their given order, then the nodes first met at hop 1, 2, … The sampled
    in-neighbours of local node ``v`` are ``indices[indptr[v]:indptr[v + 1]]``; nodes of the last hop have none, so
    ``indptr`` ends with the last node that was expanded. Edges are thereby grouped by hop, nearest first.
    """

    node_ids: np.ndarray  # [n], dtype of the graph's indices
    indptr: np.ndarray  # int32 [nodes before the last hop + 1]
    indices: np.ndarray  # int32 [e], local
    num_nodes_per_hop: tuple[int, ...]  # hops + 1 entries, seeds first, adds up to n
    num_edges_per_hop: tuple[int, ...]  # hops entries, adds up to e

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.node_ids.nbytes + self.indptr.nbytes + self.indices.nbytes


class NeighborSampler:
    """Samples for one worker: holds its scratch memory, so two threads need two samplers."""

    def __init__(self, graph: Graph, *, fanouts: Sequence[int]) -> None:
        self._indptr, self._indices = graph.indptr, graph.indices
        self._fanouts = tuple(fanouts)
        self._local_of = np.full(graph.num_nodes, _ABSENT, dtype=np.int32)
        largest_degree = int(np.diff(graph.indptr).max(initial=0))
        self._taken = np.zeros(largest_degree // 64 + 1, dtype=np.uint64)  # one bit per neighbour of one node

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """Sample around ``seeds`` [B], integers, which may be empty but not repeat.

        ``key`` names the random stream, usually ``stream_key(Stream.SAMPLING, seed, epoch, batch)``.
        Raises ``SeedsInvalidError``.
        """
        seeds = np.asarray(seeds, dtype=np.int64)
        self._check(seeds, _enter_seeds(seeds, self._local_of))
        nodes = seeds.astype(self._indices.dtype)
        num_nodes, num_edges, first = [len(nodes)], [0], 0
        indptrs, indices = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int32)]
        for fanout in self._fanouts:
            frontier = nodes[first:]
            offsets = _count(frontier, self._indptr, fanout)
            neighbors = np.empty(offsets[-1], dtype=self._indices.dtype)
            _draw(frontier, self._indptr, self._indices, offsets, np.uint64(key), self._taken, neighbors)
            local, fresh = np.empty(len(neighbors), dtype=np.int32), np.empty_like(neighbors)
            num_fresh = _relabel(neighbors, self._local_of, len(nodes), local, fresh)
            indptrs.append(offsets[1:] + sum(num_edges))
            indices.append(local)
            num_edges.append(len(local))
            first = len(nodes)
            nodes = np.concatenate((nodes, fresh[:num_fresh]))
            num_nodes.append(num_fresh)
        self._local_of[nodes] = _ABSENT
        if sum(num_edges) > _INT32_MAX:
            raise OverflowError(
                f"a subgraph of {sum(num_edges)} edges; at most {_INT32_MAX}: lower batch size or fanouts"
            )
        return SampledSubgraph(
            node_ids=nodes,
            indptr=np.concatenate(indptrs).astype(np.int32),
            indices=np.concatenate(indices),
            num_nodes_per_hop=tuple(num_nodes),
            num_edges_per_hop=tuple(num_edges[1:]),
        )

    def _check(self, seeds: np.ndarray, fault: tuple[int, int]) -> None:
        kind, position = fault
        if not kind:
            return
        self._local_of[:] = _ABSENT
        node = int(seeds[position])
        if kind == _DUPLICATE:
            raise SeedsInvalidError(
                f"node {node} is given twice among {len(seeds)} seeds (again at position {position}); a loss would"
                " count it twice: pass every seed once",
                node=node,
                position=position,
            )
        raise SeedsInvalidError(
            f"seed {node} at position {position} is no node: the graph has nodes 0 to {len(self._local_of) - 1}",
            node=node,
            position=position,
        )


@njit(nogil=True, cache=True)
def _enter_seeds(seeds, local_of):
    """Number the seeds in the scratch table. Returns (fault, position), (0, 0) when all is well."""
    for position in range(len(seeds)):
        node = seeds[position]
        if node < 0 or node >= len(local_of):
            return _OUT_OF_RANGE, position
        if local_of[node] != _ABSENT:
            return _DUPLICATE, position
        local_of[node] = np.int32(position)
    return 0, 0


@njit(nogil=True, cache=True)
def _count(frontier, indptr, fanout):
    """Where the sample of each frontier node starts, and the total: int64 [len(frontier) + 1]."""
    offsets = np.zeros(len(frontier) + 1, dtype=np.int64)
    for row in range(len(frontier)):
        node = frontier[row]
        degree = indptr[node + 1] - indptr[node]
        offsets[row + 1] = offsets[row] + (degree if fanout < 0 or degree < fanout else fanout)
    return offsets


@njit(nogil=True, cache=True)
def _draw(frontier, indptr, indices, offsets, key, taken, neighbors):
    """Fill ``neighbors`` with the sampled in-neighbours of the frontier; ``taken`` is all zero before and after."""
    one, low_bits, word_bits = np.uint64(1), np.uint64(63), np.uint64(6)
    positions = np.empty(len(neighbors), dtype=np.int64)
    for row in range(len(frontier)):
        node = frontier[row]
        start, degree = indptr[node], indptr[node + 1] - indptr[node]
        begin, end = offsets[row], offsets[row + 1]
        size = end - begin
        if size == degree:
            for i in range(size):
                positions[begin + i] = start + i
            continue
        node_key = mix64(key ^ np.uint64(node))
        for i in range(size):  # Floyd: a draw below degree−size+i+1; if taken, that upper end itself, never yet taken
            upper = np.uint64(degree - size + i)
            pick = draw_below(node_key, np.uint64(i), upper + one)
            if taken[pick >> word_bits] >> (pick & low_bits) & one:
                pick = upper
            taken[pick >> word_bits] |= one << (pick & low_bits)
            positions[begin + i] = np.int64(pick)
        for i in range(begin, end):
            taken[np.uint64(positions[i]) >> word_bits] = np.uint64(0)
            positions[i] += start
    for i in range(len(positions)):
        neighbors[i] = indices[positions[i]]


@njit(nogil=True, cache=True)
def _relabel(neighbors, local_of, num_known, local, fresh):
    """Give local numbers to ``neighbors``, new ones from ``num_known`` in order of first sight. Returns how many."""
    num_fresh = 0
    for i in range(len(neighbors)):
        node = neighbors[i]
        number = local_of[node]
        if number == _ABSENT:
            number = np.int32(num_known + num_fresh)
            local_of[node] = number
            fresh[num_fresh] = node
            num_fresh += 1
        local[i] = number
    return num_fresh
