"""How the edges of a graph fall on shards of equal rows in natural order: what the planner asks before it cuts."""

from itertools import accumulate, pairwise

import numpy as np

from workers.data.graph import Graph
from workers.ops.row_layout import even_cut


def count_shards(graph: Graph, *, num_shards: int) -> tuple[int, int]:
    """(edges into the rows of the shard with most, rows of other shards that the one with most needs).

    One pass over the edges, and one over the nodes for each shard.
    """
    starts = accumulate(even_cut(graph.num_nodes, num_shards), initial=0)
    most_edges, most_rows = 0, 0
    for first, last in pairwise(starts):
        sources = graph.indices[graph.indptr[first] : graph.indptr[last]]
        is_needed = np.zeros(graph.num_nodes, dtype=bool)
        is_needed[sources] = True
        is_needed[first:last] = False
        most_edges = max(most_edges, len(sources))
        most_rows = max(most_rows, int(np.count_nonzero(is_needed)))
    return most_edges, most_rows
