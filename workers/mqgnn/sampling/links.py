"""Seeds that are edges: pairs of nodes, each with some false targets beside its true one, as seeds of a node sampler.

A false target is drawn uniformly and is never one that the source really points to, unless 16 draws in a row are. The
draws for a pair depend on the stream key and the pair alone, so they are the same on every worker and replica.
"""

from dataclasses import dataclass

import numpy as np

from workers.data.edges import to_edges
from workers.mqgnn.counter_rng import GOLDEN, mix64_array
from workers.mqgnn.sampling.csc import Csc

_TRIES = 16


@dataclass(frozen=True, eq=False)
class LinkSeeds:
    """``nodes`` [B] to sample around, each once, in order of first sight; pairs are told by places in it."""

    nodes: np.ndarray  # int64 [B]
    sources: np.ndarray  # int64 [pairs]
    targets: np.ndarray  # int64 [pairs, 1 + negatives]: the true target first


class LinkSeeder:
    """Turns edges into seeds; knows all true edges, 8 bytes each."""

    def __init__(self, csc: Csc, *, num_negatives: int) -> None:
        assert csc.num_sources == csc.num_targets, "links within one kind of nodes"
        self._num_nodes, self._num_negatives = csc.num_targets, num_negatives
        sources, targets = to_edges(csc.indptr, csc.indices)
        edges = np.sort(sources * self._num_nodes + targets)
        self._edges = np.append(edges, np.iinfo(np.int64).max)  # so that a search never ends past the last

    def seeds(self, sources: np.ndarray, targets: np.ndarray, *, key: int | np.uint64) -> LinkSeeds:
        """The seeds of the pairs ``sources[i] -> targets[i]``."""
        sources, targets = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        false = self.false_targets(sources, targets, key=key)
        everything = np.concatenate([sources, np.column_stack([targets, false]).ravel()])
        distinct, first, place = np.unique(everything, return_index=True, return_inverse=True)
        in_order = np.argsort(first)
        numbers = np.empty(len(first), dtype=np.int64)
        numbers[in_order] = np.arange(len(first))
        local = numbers[place]
        return LinkSeeds(
            nodes=distinct[in_order],
            sources=local[: len(sources)],
            targets=local[len(sources) :].reshape(len(sources), 1 + self._num_negatives),
        )

    def false_targets(self, sources: np.ndarray, targets: np.ndarray, *, key: int | np.uint64) -> np.ndarray:
        """Those of each pair, int64 [pairs, negatives]: draws at positions negative · tries + try of its stream."""
        streams = mix64_array(np.uint64(key) ^ (sources * self._num_nodes + targets).astype(np.uint64))[:, None]
        found = np.full((len(sources), self._num_negatives), -1, dtype=np.int64)
        first = np.arange(self._num_negatives, dtype=np.uint64) * np.uint64(_TRIES)
        for attempt in range(_TRIES):
            bits = mix64_array(streams + (first + np.uint64(attempt + 1)) * GOLDEN) >> np.uint64(32)
            drawn = (bits * np.uint64(self._num_nodes) >> np.uint64(32)).astype(np.int64)
            open_ones = (found < 0) | self._are_edges(sources, found)
            found = np.where(open_ones, drawn, found)
        return found

    def _are_edges(self, sources: np.ndarray, targets: np.ndarray) -> np.ndarray:
        keys = sources[:, None] * self._num_nodes + targets
        return self._edges[np.searchsorted(self._edges, keys)] == keys
