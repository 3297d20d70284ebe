"""What edges add to a shard of a graph: more work on the fullest, and rows of others beside its own.

Symbols: P = cp_degree shards of N nodes and E edges. Where the edges of the graph were counted (``ShardCounts``) these
are its own numbers; else bounds: all edges in one shard, all rows of the others in its halo.
"""

from dataclasses import dataclass, replace

from planner.cost.communication import most_halo_rows
from planner.fitting import Work
from planner.profiles import ShardCounts, TransformerShape


@dataclass(frozen=True)
class ShardLoad:
    """``edge_skew`` is the edges of the fullest shard over the mean; ``halo_rows`` the most that a shard needs."""

    edge_skew: float = 1.0
    halo_rows: int = 0

    def on(self, work: Work) -> Work:
        """The work of a block whose time and memory grow with edges as with rows: that of the fullest shard."""
        return replace(work, num_rows=work.num_rows * self.edge_skew)


def find_shard_load(shape: TransformerShape, *, cp_degree: int) -> ShardLoad:
    """The load of ``cp_degree`` shards; of one, or without edges, nothing is added."""
    if cp_degree == 1 or "edges" not in shape.mixes:
        return ShardLoad()
    num_nodes, num_edges = max(shape.graph_sizes), shape.num_edges
    most_rows = most_halo_rows(num_nodes=num_nodes, num_edges=num_edges, cp_degree=cp_degree)
    counts = next((counts for counts in shape.shards if counts.cp_degree == cp_degree), None)
    if counts is None:
        return ShardLoad(edge_skew=float(cp_degree), halo_rows=most_rows)
    has_expander = shape.traffic is not None and shape.traffic.expander_degree > 0
    return ShardLoad(
        edge_skew=_skew(counts, num_edges=num_edges),
        halo_rows=most_rows if has_expander else counts.halo_rows,  # an expander's edges lead everywhere
    )


def _skew(counts: ShardCounts, *, num_edges: int) -> float:
    return max(1.0, counts.most_edges * counts.cp_degree / num_edges) if num_edges else 1.0
