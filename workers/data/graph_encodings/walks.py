"""Return probabilities of random walks (Dwivedi et al., "Graph Neural Networks with Learnable Structural and Positional
Representations", ICLR 2022, section 3.2): the chance that a walk from a node is back after 1, 2, … steps.

With S = D^-1/2 A D^-1/2 the diagonals of (D^-1 A)^t and S^t are equal, and as S is symmetric, (S^(a+b))_ii is the inner
product of the columns i of S^a and S^b: half the powers do. Columns are propagated in blocks, exactly.
"""

import numpy as np

from workers.data.graph import Graph
from workers.data.graph_encodings.structure import (
    checked_rows,
    inverse_square_roots,
    over_chunks,
    propagate,
    undirected_view,
)

_BLOCK = 64  # columns at a time: a cache line holds 8, and N x 64 x 2 doubles fit a cache for graphs of thousands


def return_probabilities(
    graph: Graph, *, num_steps: int, rows: range | np.ndarray | None = None, num_threads: int = 1
) -> np.ndarray:
    """float64 [len(rows), num_steps]: column t - 1 is the chance of being back after t steps; 0 at an isolated node.

    Costs len(rows) * E * num_steps / 2 multiplications. Raises ``ValueError`` for no step or a row that is no node.
    """
    if num_steps < 1:
        raise ValueError(f"a walk needs at least one step, found num_steps = {num_steps}")
    sources = checked_rows(graph, rows)
    indptr, indices = undirected_view(graph)
    scale = inverse_square_roots(np.diff(indptr))
    back = np.zeros((len(sources), num_steps))

    def walk(first: int, last: int) -> None:
        now = np.zeros((graph.num_nodes, last - first))
        now[sources[first:last], np.arange(last - first)] = 1.0
        after = np.empty_like(now)
        for power in range((num_steps + 1) // 2 + 1):
            if 1 <= 2 * power <= num_steps:
                back[first:last, 2 * power - 1] = np.einsum("nc,nc->c", now, now)
            if 2 * power + 1 > num_steps:
                break
            propagate(indptr, indices, scale, 0.0, now, after)
            back[first:last, 2 * power] = np.einsum("nc,nc->c", now, after)
            now, after = after, now

    over_chunks(len(sources), walk, chunk=_BLOCK, num_threads=num_threads)
    return back
