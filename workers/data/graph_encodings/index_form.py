"""How large the two forms of a distance index are: a byte for every pair, or 5 for each pair within reach.

Near pairs are counted exactly where memory is promised (``heaviest_rows``), and in a sample where a form is chosen
(``is_near_form_smaller``). Sets of small graphs stay dense: their indices are small in either form.
"""

from collections.abc import Sequence

import numpy as np

from workers.data.graph import Graph

# An int32 column and a bucket; of a row its end as int64. Mirrored by ``planner.cost.memory``.
_PAIR_BYTES, _ROW_BYTES = 5, 8
# Chosen: below that the dense form is quicker to read and cheap to hold.
_WORTHWHILE_FACTOR = 4
_SMALLEST_GRAPH = 1024
_SAMPLED_ROWS = 512
_HALVINGS = 7


def is_near_form_smaller(graphs: Sequence[Graph], *, max_distance: int) -> bool:
    """Whether near pairs take at most a quarter of the dense form's bytes, judged by rows of the largest graph.

    512 rows, evenly spaced. Graphs of less than 1,024 nodes never do.
    """
    largest = max(graphs, key=lambda graph: graph.num_nodes)
    if largest.num_nodes < _SMALLEST_GRAPH:
        return False
    near = mean_pairs_within(largest, max_distance=max_distance)
    return _WORTHWHILE_FACTOR * (_PAIR_BYTES * near + _ROW_BYTES) <= largest.num_nodes


def mean_pairs_within(graph: Graph, *, max_distance: int) -> float:
    """Nodes within reach of a node, itself among them: the mean over 512 rows, evenly spaced, or over all."""
    rows = np.unique(np.linspace(0, graph.num_nodes - 1, _SAMPLED_ROWS).astype(np.int64))
    return float(_counts(graph, rows=rows, max_distance=max_distance).mean())


def heaviest_rows(graphs: Sequence[Graph], *, max_distance: int) -> tuple[int, ...]:
    """[k]: pairs within reach of those ⌈N / 2^k⌉ rows of each graph that have the most; [0] is all of them.

    So whatever the order of nodes, a shard of ⌈N / P⌉ rows has at most those of the largest 2^k ≤ P.
    """
    totals = np.zeros(_HALVINGS, dtype=np.int64)
    for graph in graphs:
        counts = _counts(graph, rows=np.arange(graph.num_nodes), max_distance=max_distance)
        up_to = np.cumsum(np.sort(counts)[::-1])
        totals += [up_to[-(-graph.num_nodes // 2**halving) - 1] for halving in range(_HALVINGS)]
    return tuple(totals.tolist())


def _counts(graph: Graph, *, rows: np.ndarray, max_distance: int) -> np.ndarray:
    # Imported when asked for: numba takes a second, and most jobs are described without it.
    from workers.data.graph_encodings.distances import count_pairs_within

    return count_pairs_within(graph, rows=rows, max_distance=max_distance)
