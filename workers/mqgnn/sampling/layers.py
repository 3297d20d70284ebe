"""Layer-wise sampling: at every hop, some nodes for all targets together, by importance; all met so far are targets.

In: seeds, one number of nodes per hop (nearest first; −1 takes all), a stream key. Out: a ``SampledSubgraph`` that is
not nested, with edge weights: times these, a sum over the sampled in-neighbours estimates the sum over all.

Importance of a candidate j, with P = D̃^−½ A D̃^−½ and D̃ = in-degree + 1 (as GCN normalises):

    fastgcn   ‖P[:, j]‖²; candidates are all nodes of the graph (Chen, Ma, Xiao, ICLR 2018, section 3.1)
    ladies    ‖P[T, j]‖²; candidates are the neighbours of the targets T (Zou et al., NeurIPS 2019, section 3.2)
    flat      ‖P[·, j]‖ in place of its square ("+f": Chen et al., TMLR 2023, section 4)

Nodes are drawn one after the other without replacement in proportion to importance, as the first arrivals of an
exponential race. Node j then counts 1 / (s p_j) times, s nodes being drawn and p being importance scaled to sum 1:
slightly biased, since draws without replacement are not independent. ``debiased`` ("+d", section 5 there) mixes, after
each draw k, an unbiased estimate from draws 1 … k (Das Raj, 1956) into that of the draws before, at
α = n / (k (n − k + 1)) for n candidates. Where no more than s nodes have any importance, all are taken and count once.

Differs from the papers in one point: a target's own row is never sampled, for convolutions know it exactly (A has no
diagonal). Random numbers depend on the stream key, the hop and the node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.memory import Kernels, Numbering
from workers.mqgnn.sampling.neighbors import joined_offsets
from workers.mqgnn.sampling.subgraph import SampledSubgraph

Importance = Literal["fastgcn", "ladies"]


@dataclass(frozen=True)
class LayerOptions:
    """How to sample. ``edge_ids``: also say which edges. ``relabel_last_hop`` as in ``NeighborOptions``."""

    importance: Importance = "ladies"
    flat: bool = False
    debiased: bool = False
    edge_ids: bool = False
    relabel_last_hop: bool = True


class LayerSampler:
    """Samples for one worker: holds its scratch memory, 24 to 36 bytes per node, so two threads need two samplers."""

    def __init__(
        self,
        csc: Csc,
        *,
        sizes: Sequence[int],
        options: LayerOptions,
        kernels: Kernels = numba_kernels,
    ) -> None:
        self._csc, self._sizes, self._options, self._kernels = csc, tuple(sizes), options, kernels
        self._numbering = Numbering(csc.num_sources, kernels=kernels)
        self._chosen = Numbering(csc.num_sources, kernels=kernels)
        self._weight_of = np.empty(csc.num_sources, dtype=np.float32)
        if options.importance == "fastgcn":
            self._everybody = self._candidates(np.arange(csc.num_targets, dtype=csc.indices.dtype))

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """Sample around ``seeds`` [B], integers, which may be empty but not repeat. Raises ``SeedsInvalidError``."""
        seeds, csc = np.asarray(seeds, dtype=np.int64), self._csc
        self._numbering.begin(seeds)
        nodes = [seeds.astype(csc.indices.dtype)]
        rows, local, positions, weights = [], [], [], []
        for hop, size in enumerate(self._sizes):
            targets = np.concatenate(nodes)
            self._choose(targets, size=size, stream=stream_key(int(key), hop))
            offsets, kept = self._chosen.keep(targets, csc)
            rows.append(joined_offsets([offsets]))
            positions.append(kept)
            weights.append(self._weight_of[csc.indices[kept]])
            if hop < len(self._sizes) - 1 or self._options.relabel_last_hop:
                numbers, fresh = self._numbering.relabel(kept, csc.indices, num_known=len(targets))
                local.append(numbers)
                nodes.append(fresh)
        edges = np.concatenate(positions)
        return SampledSubgraph(
            node_ids=np.concatenate(nodes),
            indptr=np.concatenate(rows),
            indices=np.concatenate(local) if local else np.empty(0, dtype=np.int32),
            num_nodes_per_hop=(*map(len, nodes), *[0] * (not self._options.relabel_last_hop)),
            num_edges_per_hop=tuple(map(len, positions)),
            edge_ids=csc.edge_numbers(edges) if self._options.edge_ids else None,
            edge_weights=np.concatenate(weights),
            source_ids=None if self._options.relabel_last_hop else csc.indices[edges],
            nested=False,
        )

    def _choose(self, targets: np.ndarray, *, size: int, stream: np.uint64) -> None:
        """Draw the nodes of one hop: number them in ``_chosen`` and note their weights."""
        nodes, importance = self._everybody if self._options.importance == "fastgcn" else self._candidates(targets)
        if 0 <= size < len(nodes):
            arrived, finish = np.empty(size, dtype=np.int64), np.empty(size)
            self._kernels.race(nodes, importance, stream, finish, arrived)
            shares = importance[arrived] / importance.sum()
            nodes, weights = nodes[arrived], estimator(shares, len(nodes), debiased=self._options.debiased)
            self._weight_of[nodes] = weights
        else:
            self._weight_of[nodes] = 1
        self._chosen.begin(nodes.astype(np.int64))

    def _candidates(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the nodes that ``targets`` hear from, their importance float64 > 0)."""
        nodes, sums = self._chosen.find_columns(targets, self._csc)
        importance = sums / (self._csc.indptr[nodes + 1] - self._csc.indptr[nodes] + 1)
        return nodes, np.sqrt(importance) if self._options.flat else importance


def estimator(shares: np.ndarray, num_candidates: int, *, debiased: bool) -> np.ndarray:
    """What each drawn node counts for in a sum over all candidates, float64 [draws].

    ``shares`` [draws] are the probabilities p of the drawn nodes among all candidates, in the order of the draws.
    """
    num_draws = len(shares)
    if not debiased or not num_draws:
        return 1 / (num_draws * shares)
    draw = np.arange(1, num_draws + 1)
    alpha = num_candidates / (draw * (num_candidates - draw + 1))  # 1 for the first draw
    new = alpha * (1 - (np.cumsum(shares) - shares)) / shares
    # Draw k multiplies what came before by 1 − α and adds α to it: passed on backwards from the last draw.
    # (Lists of Python's numbers: five times faster than elements of arrays.)
    weights, factor, summand = [], 1.0, 0.0
    for estimate, part in zip(new.tolist()[::-1], alpha.tolist()[::-1], strict=True):
        weights.append(estimate * factor + summand)
        summand += factor * part
        factor *= 1 - part
    return np.array(weights[::-1])
