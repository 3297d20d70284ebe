"""A graph of skewed degrees: the size and shape of what sampled GNNs are compared on."""

import numpy as np

from workers.data.edges import Adjacency, from_edges


def power_law_edges(num_nodes: int = 200_000, *, num_edges: int = 3_000_000, seed: int = 0) -> Adjacency:
    """An undirected graph whose degrees fall off as a power: about ``num_edges`` entries, both ways counted."""
    rng = np.random.default_rng(seed)
    ends = (num_nodes * rng.random((2, num_edges // 2 * 21 // 20)) ** 1.6).astype(np.int64)
    numbers = rng.permutation(num_nodes)  # hubs anywhere
    return from_edges(numbers[ends[0]], numbers[ends[1]], num_nodes=num_nodes)
