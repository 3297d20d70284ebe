"""Sampled subgraphs, kept within a byte budget while their epoch is used again.

``CacheRule.sampled_in`` says which epoch's seeds and samples an epoch uses: R₀·ρᵏ epochs in a row use those of the
first (Ramezani et al., LazyGCN, NeurIPS 2020). That alone decides what is trained; a subgraph that is not found here
is sampled again, from the same stream, and comes out the same. So results depend on no budget, thread or restart.

Where a graph changes (``workers.mqgnn.graph_versions``), a subgraph is stale if it shows the in-edges of a node whose
in-edges have changed: what is drawn for a node depends on its own in-edges and the stream. These alone are dropped.
Layer-wise samples depend on all edges, so any change drops them.

A run takes an epoch's subgraphs once each, in order. Giving up the oldest for the newest would then find none, so the
first that fit stay until the next epoch is sampled.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workers.mqgnn.graph_versions import Change
from workers.mqgnn.sampling.subgraph import SampledSubgraph


@dataclass(frozen=True, eq=False)
class _Kept:
    seeds: np.ndarray
    subgraph: SampledSubgraph

    @property
    def nbytes(self) -> int:
        return self.seeds.nbytes + self.subgraph.nbytes

    def is_touched(self, has_changed: np.ndarray) -> bool:
        """Whether in-edges that it was drawn from have changed; ``has_changed`` [N] by node."""
        if not self.subgraph.nested:
            return True
        expanded = self.subgraph.node_ids[: len(self.subgraph.indptr) - 1]
        return bool(has_changed[expanded].any())


class SubgraphCache:
    """The subgraphs of one sampled epoch, as far as ``max_bytes`` go. For all sampling workers of a replica."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sampled_in = 0
        self._kept: dict[int, _Kept] = {}  # by batch
        self.nbytes = 0
        self._version = 0
        self._hits = self._misses = self._dropped = self._ages = 0

    def get(
        self,
        *,
        epoch: int,
        sampled_in: int,
        batch: int,
        seeds: np.ndarray,
        sample: Callable[[], SampledSubgraph],
        version: int = 0,
    ) -> SampledSubgraph:
        """The subgraph of ``batch`` of epoch ``sampled_in`` around ``seeds``, for use in ``epoch``.

        What ``sample`` gives, from ``version`` of the graph, is kept if it fits. A replica whose share of the batch has
        changed has other seeds.
        """
        with self._lock:
            if sampled_in > self._sampled_in:
                self._sampled_in = sampled_in
                self._kept.clear()
                self.nbytes = 0
            self._ages += epoch - sampled_in
            is_current = (version, sampled_in) == (self._version, self._sampled_in)
            kept = self._kept.get(batch) if is_current else None
            if kept is not None and np.array_equal(kept.seeds, seeds):
                self._hits += 1
                return kept.subgraph
            self._misses += 1
        subgraph = sample()
        self._keep(_Kept(seeds, subgraph), version=version, sampled_in=sampled_in, batch=batch)
        return subgraph

    def forget(self, change: Change, *, num_nodes: int) -> None:
        """Drop what ``change`` has touched in a graph of ``num_nodes`` nodes."""
        has_changed = np.zeros(num_nodes, dtype=bool)
        has_changed[change.targets] = True
        with self._lock:
            self._version = change.number
            if not len(change.targets):
                return
            for batch in [batch for batch, kept in self._kept.items() if kept.is_touched(has_changed)]:
                self.nbytes -= self._kept.pop(batch).nbytes
                self._dropped += 1

    def figures(self) -> dict[str, float]:
        """Since the start: mini-batches found here, sampled, dropped by changes of the graph, and the mean number of
        epochs since they were first sampled; bytes and version of now.
        """
        with self._lock:
            asked = self._hits + self._misses
            return {
                "cache_subgraph_hits": float(self._hits),
                "cache_subgraph_misses": float(self._misses),
                "cache_subgraph_dropped": float(self._dropped),
                "cache_subgraph_bytes": float(self.nbytes),
                "graph_version": float(self._version),
                "cache_staleness": self._ages / max(1, asked),
            }

    def _keep(self, fresh: _Kept, *, version: int, sampled_in: int, batch: int) -> None:
        with self._lock:
            if (version, sampled_in) != (self._version, self._sampled_in):
                return  # another worker has begun the next epoch, or the graph has changed meanwhile
            before = self._kept.pop(batch, None)
            self.nbytes -= before.nbytes if before else 0
            if self.nbytes + fresh.nbytes <= self._max_bytes:
                self._kept[batch] = fresh
                self.nbytes += fresh.nbytes
