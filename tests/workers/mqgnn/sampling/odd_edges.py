"""Edges with weights and times, and graphs that are odd."""

import numpy as np

from workers.mqgnn.sampling.csc import Csc, csc_of_edges


def random_csc(num_nodes: int = 120, *, num_edges: int = 900, seed: int = 0) -> Csc:
    """Skewed degrees, self loops, duplicates, nodes without edges; a quarter of the weights is 0, times are 0 to 9."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(num_nodes, size=num_edges)
    targets = (num_nodes * rng.random(num_edges) ** 3).astype(np.int64)
    weights = rng.random(num_edges) * (rng.random(num_edges) < 0.75)
    return csc_of_edges(sources, targets, num_nodes=num_nodes, weights=weights, times=rng.integers(10, size=num_edges))


def star_csc(num_leaves: int, *, weights: list[float] | None = None, times: list[int] | None = None) -> Csc:
    """Leaves 1, 2, … all point to node 0."""
    leaves = np.arange(1, num_leaves + 1)
    return csc_of_edges(
        leaves,
        np.zeros_like(leaves),
        num_nodes=num_leaves + 1,
        weights=None if weights is None else np.array(weights),
        times=None if times is None else np.array(times),
    )
