"""Sampled subgraphs, kept within a byte budget while their epoch is used again.

``CacheRule.sampled_in`` says which epoch's seeds and samples an epoch uses: R₀·ρᵏ epochs in a row use those of the
first (Ramezani et al., LazyGCN, NeurIPS 2020). That alone decides what is trained; a subgraph that is not found here
is sampled again, from the same stream, and comes out the same. So results depend on no budget, thread or restart.

A run takes an epoch's subgraphs once each, in order. Giving up the oldest for the newest would then find none, so the
first that fit stay until the next epoch is sampled.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from workers.mqgnn.sampling.subgraph import SampledSubgraph


@dataclass(frozen=True, eq=False)
class _Kept:
    seeds: np.ndarray
    subgraph: SampledSubgraph

    @property
    def nbytes(self) -> int:
        return self.seeds.nbytes + self.subgraph.nbytes


class SubgraphCache:
    """The subgraphs of one sampled epoch, as far as ``max_bytes`` go. For all sampling workers of a replica."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sampled_in = 0
        self._kept: dict[int, _Kept] = {}  # by batch
        self.nbytes = 0
        self._hits = self._misses = self._ages = 0

    def get(
        self,
        *,
        epoch: int,
        sampled_in: int,
        batch: int,
        seeds: np.ndarray,
        sample: Callable[[], SampledSubgraph],
    ) -> SampledSubgraph:
        """The subgraph of ``batch`` of epoch ``sampled_in`` around ``seeds``, for use in ``epoch``.

        What ``sample`` gives is kept if it fits. A replica whose share of the batch has changed has other seeds.
        """
        with self._lock:
            if sampled_in > self._sampled_in:
                self._sampled_in = sampled_in
                self._kept.clear()
                self.nbytes = 0
            self._ages += epoch - sampled_in
            kept = self._kept.get(batch) if sampled_in == self._sampled_in else None
            if kept is not None and np.array_equal(kept.seeds, seeds):
                self._hits += 1
                return kept.subgraph
            self._misses += 1
        subgraph = sample()
        self._keep(_Kept(seeds, subgraph), sampled_in=sampled_in, batch=batch)
        return subgraph

    def figures(self) -> dict[str, float]:
        """Since the start: mini-batches found here, sampled, and the mean epochs since they were first sampled."""
        with self._lock:
            asked = self._hits + self._misses
            return {
                "cache_subgraph_hits": float(self._hits),
                "cache_subgraph_misses": float(self._misses),
                "cache_subgraph_bytes": float(self.nbytes),
                "cache_staleness": self._ages / max(1, asked),
            }

    def _keep(self, fresh: _Kept, *, sampled_in: int, batch: int) -> None:
        with self._lock:
            if sampled_in != self._sampled_in:
                return  # another worker has begun the next epoch
            before = self._kept.pop(batch, None)
            self.nbytes -= before.nbytes if before else 0
            if self.nbytes + fresh.nbytes <= self._max_bytes:
                self._kept[batch] = fresh
                self.nbytes += fresh.nbytes
