"""Refuses a job whose distance index alone is larger than the memory of a rank, before anything is measured.

The index holds some bytes for every pair of nodes of a graph, cut by rows over the ranks of a replica. No plan can do
with less, so this needs no profile.
"""

import math

from planner.cluster import ClusterSpec, room_per_rank
from planner.cost.compute import total_work
from planner.cost.memory import pair_index_bytes
from planner.errors import NoPlanFitsError
from planner.explain import format_bytes
from planner.profiles import TransformerShape
from planner.space import legal_degrees

_WITHOUT_INDEX = (
    "a model without such an index: gt and exphormer attend along edges, sgformer and nagphormer take linear time"
)


def check_pair_index(
    shape: TransformerShape,
    *,
    cluster: ClusterSpec,
    num_ranks: int,
    cpus_per_rank: float = 1.0,
    gpus_per_rank: float = 0.0,
) -> None:
    """Hold the index on ``num_ranks`` ranks, the most that the job may have, against what a rank may take.

    Raises ``NoPlanFitsError`` with both, and what would fit: the number of ranks, the form of the index or the model.
    """
    limit = room_per_rank(
        cluster, num_ranks=num_ranks, cpus_per_rank=cpus_per_rank, gpus_per_rank=gpus_per_rank
    ).memory_bytes
    degrees = legal_degrees(shape, num_ranks=num_ranks)
    if limit is None or not degrees:
        return
    widest = max(cp_degree for _, cp_degree in degrees)
    sizes = (*shape.graph_sizes, *shape.other_graph_sizes)
    asked = pair_index_bytes(total_work(sizes, cp_degree=widest), pair_bytes=shape.pair_bytes)
    if asked <= limit:
        return
    raise NoPlanFitsError(
        f"the distance index of {shape.model} takes {format_bytes(asked)} per rank, {shape.pair_bytes} for each pair of"
        f" nodes ({max(sizes)} in the largest graph) over {widest} ranks; a rank may take {format_bytes(limit)}. Choose"
        f" {'; or '.join(_ways_out(shape, limit=limit))}",
        needed_bytes=round(asked),
        limit_bytes=limit,
        num_ranks=num_ranks,
    )


def _ways_out(shape: TransformerShape, *, limit: int) -> list[str]:
    """What would do with less, the nearest first."""
    ways = []
    if dict(shape.options).get("index") == '"dense"':
        ways.append("index: near_pairs, which holds the pairs within max_distance alone")
    pairs = total_work((*shape.graph_sizes, *shape.other_graph_sizes), cp_degree=1)
    if limit > 0:
        ranks = math.ceil(pair_index_bytes(pairs, pair_bytes=shape.pair_bytes) / limit)
        if ranks <= min(shape.graph_sizes):
            ways.append(f"{ranks} ranks or more, on as many more nodes with room as these have for each")
    return [*ways, _WITHOUT_INDEX]
