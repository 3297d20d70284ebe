"""Expander edges for Exphormer (Shirzad et al., ICML 2023, section 3.1): a random regular graph over the nodes.

The union of degree / 2 random Hamiltonian cycles; random regular graphs are near-Ramanujan with high probability
(Friedman 2003), so every pair is joined by a short path and the gap does not shrink with N.
"""

import numpy as np

_TRIES = 100  # swaps per cycle that would give a pair a second edge; with N well above the degree a few do


def expander_edges(num_nodes: int, *, degree: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(sources, targets), int64, every edge both ways, no loops, none twice; a function of the three numbers alone.

    Each node has ``degree`` neighbours; where there are not so many nodes, all others; in between (N below about twice
    the degree) a few pairs may be missing. Raises ``ValueError`` for a degree that is odd or below 2.
    """
    if degree < 2 or degree % 2:
        raise ValueError(f"an expander is made of cycles, so its degree is even and at least 2; found {degree}")
    if num_nodes <= degree + 1:
        sources, targets = np.nonzero(~np.eye(num_nodes, dtype=bool))
        return sources, targets
    generator = np.random.default_rng((seed, num_nodes, degree))
    edges = np.zeros(0, dtype=np.int64)  # low * N + high, sorted
    for _ in range(degree // 2):
        cycle = _new_cycle(generator.permutation(num_nodes), edges=edges, generator=generator)
        edges = np.union1d(edges, _edges_of(cycle))
    low, high = np.divmod(edges, num_nodes)
    return np.concatenate([low, high]), np.concatenate([high, low])


def _new_cycle(cycle: np.ndarray, *, edges: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """``cycle`` with nodes swapped until it shares no edge with ``edges``, or the tries are used up."""
    for _ in range(_TRIES):
        shared = np.flatnonzero(np.isin(_edges_of(cycle), edges))
        if not len(shared):
            break
        others = generator.integers(len(cycle), size=len(shared))
        for place, other in zip(shared, others, strict=True):
            cycle[[place, other]] = cycle[[other, place]]
    return cycle


def _edges_of(cycle: np.ndarray) -> np.ndarray:
    following = np.roll(cycle, -1)
    return np.minimum(cycle, following) * len(cycle) + np.maximum(cycle, following)
