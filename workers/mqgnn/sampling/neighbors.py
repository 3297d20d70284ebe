"""Node-wise sampling: every node met is expanded once, hop by hop, by choosing some of its in-edges.

In: seeds, one fanout per hop (nearest first; −1 takes all neighbours), a stream key. Out: a nested ``SampledSubgraph``.
A node is expanded at the hop after the one that met it first, with the fanout of that hop, by one of the rules

    uniform    all neighbours alike (Hamilton et al., NeurIPS 2017, section 3.1), by Floyd's selection
    weighted   without replacement in proportion to edge weights: the first of an exponential race (Efraimidis &
               Spirakis, 2006); with replacement by running sums. An edge of weight 0 is never drawn
    uniform, with a ``Preference``: some sources more often, and edge weights that make up for it (``preference``)
    labor      LABOR-0 (Balin & Çatalyürek, NeurIPS 2023, section 3.2): one random number per source, for all targets;
               ``fanout`` edges of a target in expectation, as many as neighbour sampling, from fewer sources

What is drawn for a node depends on the stream key and the node alone (not on the hop, the other seeds, the thread):
the same mini-batch gives the same subgraph for any number of workers, and where all fanouts are equal, replicas that
share a mini-batch draw together what one process would. ``disjoint`` keeps the subgraph of each seed apart from the
others; then seeds may repeat, and each may have a time: no edge later than it is taken anywhere in its subgraph.

Three passes per hop, each over flat arrays: choose edges, then fetch their sources (independent loads, which the
processor overlaps) and number them by a scratch table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workers.mqgnn.counter_rng import mix64_array
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.disjoint import TreeNumbering
from workers.mqgnn.sampling.memory import NO_TIMES, RULES, EdgeChooser, Kernels, Numbering, Streams
from workers.mqgnn.sampling.preference import Preference, PreferringChooser
from workers.mqgnn.sampling.subgraph import SampledSubgraph

ALL_NEIGHBORS = -1
_INT32_MAX = 2**31 - 1

Rule = Literal["uniform", "weighted", "labor"]


@dataclass(frozen=True)
class NeighborOptions:
    """How to sample. ``edge_ids``: also say which edges. ``relabel_last_hop``: off, the nodes of the last hop get no
    local numbers and are not in ``node_ids``; ``source_ids`` names the sources of all edges instead, for kernels that
    read features straight from the whole matrix.
    """

    rule: Rule = "uniform"
    with_replacement: bool = False
    disjoint: bool = False
    edge_ids: bool = False
    relabel_last_hop: bool = True


UNIFORM_NEIGHBORS = NeighborOptions()


class NeighborSampler:
    """Samples for one worker: holds its scratch memory, so two threads need two samplers."""

    def __init__(
        self,
        csc: Csc,
        *,
        fanouts: Sequence[int],
        options: NeighborOptions = UNIFORM_NEIGHBORS,
        preference: Preference | None = None,
        kernels: Kernels = numba_kernels,
    ) -> None:
        assert options.rule != "weighted" or csc.weights is not None, "weighted sampling needs edge weights"
        assert options.rule != "labor" or not options.with_replacement, "LABOR draws without replacement"
        is_plain = options.rule == "uniform" and not (options.with_replacement or options.disjoint)
        assert preference is None or is_plain, "preference is for plain uniform sampling"
        self._fanouts, self._options, self._csc = tuple(fanouts), options, csc
        self._preferring = preference and PreferringChooser(csc, preference=preference, kernels=kernels)
        self._chooser = EdgeChooser(
            csc, rule=RULES[options.rule], with_replacement=options.with_replacement, kernels=kernels
        )
        self._numbering = (
            TreeNumbering(csc.num_sources) if options.disjoint else Numbering(csc.num_sources, kernels=kernels)
        )

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64, times: np.ndarray | None = None) -> SampledSubgraph:
        """Sample around ``seeds`` [B], integers, which may be empty and, unless disjoint, not repeat.

        ``key`` names the random stream, usually ``stream_key(Stream.SAMPLING, seed, epoch, batch)``; ``times`` int64
        [B], the latest time of an edge for each seed; [1] if not disjoint. Raises ``SeedsInvalidError``.
        """
        seeds = np.asarray(seeds, dtype=np.int64)
        streams, indices = self._streams(seeds, key=key, times=times), self._csc.indices
        self._numbering.begin(seeds)
        nodes, trees = [seeds.astype(indices.dtype)], [self._numbering.trees]
        offsets, positions, local, weights = [], [], [], []
        for hop, fanout in enumerate(self._fanouts, 1):
            if self._preferring is None:
                begins, chosen = self._chooser.choose(nodes[-1], fanout=fanout, streams=streams, trees=trees[-1])
            else:
                begins, chosen, counts = self._preferring.choose(nodes[-1], fanout=fanout, stream=streams.keys[0])
                weights.append(counts)
            offsets.append(begins)
            positions.append(chosen)
            if hop < len(self._fanouts) or self._options.relabel_last_hop:
                numbers, fresh = self._numbering.relabel(
                    chosen, indices, num_known=sum(map(len, nodes)), offsets=begins
                )
                local.append(numbers)
                nodes.append(fresh)
                trees.append(self._numbering.trees)
        edges = np.concatenate(positions) if self._options.edge_ids or not self._options.relabel_last_hop else None
        return SampledSubgraph(
            node_ids=np.concatenate(nodes),
            indptr=joined_offsets(offsets),
            indices=np.concatenate(local) if local else np.empty(0, dtype=np.int32),
            num_nodes_per_hop=(*map(len, nodes), *[0] * (not self._options.relabel_last_hop)),
            num_edges_per_hop=tuple(map(len, positions)),
            edge_ids=self._csc.edge_numbers(edges) if self._options.edge_ids else None,
            edge_weights=np.concatenate(weights) if weights else None,
            trees=np.concatenate(trees) if self._options.disjoint else None,
            source_ids=None if self._options.relabel_last_hop else indices[edges],
        )

    def _streams(self, seeds: np.ndarray, *, key: int | np.uint64, times: np.ndarray | None) -> Streams:
        stream = np.array([key], dtype=np.uint64)
        keys = mix64_array(stream ^ seeds.astype(np.uint64)) if self._options.disjoint else stream
        if times is None:
            return Streams(keys, limits=NO_TIMES)
        assert self._csc.times is not None, "temporal sampling needs edge times"
        assert len(times) == len(keys), "a time for each subgraph"
        return Streams(keys, limits=np.asarray(times, dtype=np.int64))


def joined_offsets(offsets: Sequence[np.ndarray]) -> np.ndarray:
    """One int32 row pointer from the offsets of each hop's rows. Raises ``OverflowError`` past 2³¹ − 1 edges."""
    begins, parts = 0, [np.zeros(1, dtype=np.int32)]
    for hop in offsets:
        if begins + int(hop[-1]) > _INT32_MAX:
            raise OverflowError(
                f"a subgraph of {begins + int(hop[-1])} edges; at most {_INT32_MAX}: lower batch size or fanouts"
            )
        parts.append((hop[1:] + begins).astype(np.int32))
        begins += int(hop[-1])
    return np.concatenate(parts)
