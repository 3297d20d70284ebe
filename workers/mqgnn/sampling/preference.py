"""Sampling towards nodes whose features are near: preferred neighbours are drawn more often, and count for less.

The importance correction of global neighbour sampling (Dong et al., GNS, KDD 2021, section 3.3) in a form without bias:
an edge counts one over its chance of being drawn (Horvitz & Thompson, 1952), and that chance is known exactly, as the
number of edges drawn from either kind is fixed up to rounding at random (see ``numba_kernels.draw_preferring``). So
times ``SampledSubgraph.edge_weights``, a sum over sampled neighbours has the sum over all as its mean. The variance
grows with the factor, for what is drawn rarely counts much.
"""

from dataclasses import dataclass

import numpy as np

from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.memory import Kernels


@dataclass(frozen=True, eq=False)
class Preference:
    """Neighbours that are ``preferred`` are drawn ``factor`` times as often as others, if they are as many."""

    preferred: np.ndarray  # bool [N]
    factor: float  # ≥ 1


class PreferringChooser:
    """Chooses in-edges of nodes in one CSC by a preference. Scratch memory: 8 bytes per edge of the largest node."""

    def __init__(self, csc: Csc, *, preference: Preference, kernels: Kernels) -> None:
        self._csc, self._preference, self._kernels = csc, preference, kernels
        largest = int(np.diff(csc.indptr).max(initial=0))
        self._places = np.empty(largest, dtype=np.int64)
        self._taken = np.zeros(largest // 64 + 1, dtype=np.uint64)

    def choose(self, nodes: np.ndarray, *, fanout: int, stream: np.uint64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(offsets int64 [len(nodes) + 1], positions of the chosen edges in the CSC arrays, their weights float32)."""
        csc = self._csc
        capacity = self._kernels.count(nodes, csc.indptr, fanout, False)
        offsets = np.empty(len(nodes) + 1, dtype=np.int64)
        positions, weights = np.empty(capacity, dtype=csc.indices.dtype), np.empty(capacity, dtype=np.float32)
        self._kernels.draw_preferring(
            nodes,
            stream,
            csc.indptr,
            csc.indices,
            self._preference.preferred,
            self._preference.factor,
            fanout,
            self._places,
            self._taken,
            offsets,
            positions,
            weights,
        )
        return offsets, positions, weights
