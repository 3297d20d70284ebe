"""The planner's two questions: what must be measured for a job, and how should it run.

``probes_for`` is asked before the probe, ``choose_plan`` after it; where the number of ranks is open, once for each of
``rank_counts_to_probe``. All are pure: the same values give the same answer.
"""

import math
from collections.abc import Sequence

from planner.cluster import ClusterSpec, RankRoom, room_per_rank
from planner.cost.compute import mean_work
from planner.cost.memory import ring_shard_bytes
from planner.cost.step_time import ELEMENT_BYTES
from planner.errors import NoPlanFitsError, ProfileMismatchError
from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.plan_sampled import batch_sizes_to_probe, plan_sampled
from planner.plan_transformer import plan_transformer
from planner.profiles import JobShape, ProbeRequest, Profile, ProfileKey, SampledShape, TransformerShape, UnitSize
from planner.rank_counts import best_of
from planner.search import Choice
from planner.space import Candidate, list_candidates

# Chosen: three sizes tell a constant, rows and pairs (which grow with the square) apart.
_PROBE_PARTS = (0.25, 0.5, 1.0)
# Chosen: larger sizes are measured smaller and extrapolated (about a second of plain torch attention on one core).
_PROBE_MAX_PAIRS = 2**23
# Chosen: from where latency rules to where bandwidth does.
_PROBE_LINK_BYTES = (4 * 2**10, 64 * 2**10, 2**20, 4 * 2**20)

_LONGEST_FACT = 60


def probes_for(shape: JobShape, *, key: ProfileKey, cluster: ClusterSpec) -> ProbeRequest:
    """What to measure for ``shape`` on ``key.num_ranks`` ranks. Raises ``NoPlanFitsError`` when no plan is legal."""
    room = _room(key, cluster)
    most = max(1, int(room.num_cores))
    threads = (1, most) if most > 1 and key.device_kind == "cpu" else (most,)
    if isinstance(shape, SampledShape):
        return ProbeRequest(
            key=key, stage_batch_sizes=batch_sizes_to_probe(shape, num_ranks=key.num_ranks), threads=threads
        )
    space = list_candidates(shape, num_ranks=key.num_ranks, thread_counts=threads)
    widest = max(candidate.cp_degree for candidate in space.candidates)
    return ProbeRequest(
        key=key,
        unit_sizes=_unit_sizes(shape, space.candidates),
        link_bytes=_link_bytes(shape, cp_degree=widest) if key.num_ranks > 1 else (),
        threads=threads,
    )


def make_plan(shape: JobShape, *, cluster: ClusterSpec, profile: Profile, num_ranks: int) -> MegaGraphPlan | MQGNNPlan:
    """The fastest plan that fits, with its prediction, its reasons and what the runners-up lack.

    What a rank asks of its node is that of the profile's key: a plan for other resources needs another profile.

    Raises ``ProfileMismatchError`` when the profile was measured for another job or number of ranks, and
    ``NoPlanFitsError`` when nothing fits; the message names the nearest miss.
    """
    return _choose(shape, cluster=cluster, profile=profile, num_ranks=num_ranks).plan


def choose_plan(
    shape: JobShape, *, cluster: ClusterSpec, profiles: Sequence[Profile], most_ranks: int
) -> MegaGraphPlan | MQGNNPlan:
    """The fastest plan over all numbers of ranks that were measured; ``most_ranks`` is what the job asked for.

    One profile leaves no choice, and the plan is that of ``make_plan``. Raises as ``make_plan`` does; where nothing
    fits, for the most ranks, which need least memory each.
    """
    choices: list[Choice] = []
    too_large: dict[int, NoPlanFitsError] = {}
    for profile in sorted(profiles, key=lambda profile: profile.key.num_ranks):
        num_ranks = profile.key.num_ranks
        try:
            choices.append(_choose(shape, cluster=cluster, profile=profile, num_ranks=num_ranks))
        except NoPlanFitsError as error:
            too_large[num_ranks] = error
    if not choices:
        raise too_large[max(too_large)]
    return best_of(choices, too_large=sorted(too_large), most_ranks=most_ranks)


def _choose(shape: JobShape, *, cluster: ClusterSpec, profile: Profile, num_ranks: int) -> Choice:
    _check_profile(shape, profile, num_ranks)
    room = _room(profile.key, cluster)
    if isinstance(shape, SampledShape):
        return plan_sampled(shape, profile=profile, room=room, num_ranks=num_ranks)
    return plan_transformer(shape, profile=profile, room=room, num_ranks=num_ranks)


def _room(key: ProfileKey, cluster: ClusterSpec) -> RankRoom:
    return room_per_rank(
        cluster, num_ranks=key.num_ranks, cpus_per_rank=key.cpus_per_rank, gpus_per_rank=key.gpus_per_rank
    )


def _unit_sizes(shape: TransformerShape, candidates: Sequence[Candidate]) -> tuple[UnitSize, ...]:
    """Around the micro-batches that the candidates stand for, smallest first.

    For the least and the most shards: the largest graph, a half and a quarter of it (rows and columns shrink together,
    so each is cut into as many shards as the real one). For many graphs in a micro-batch: as many of like size, which
    have the pairs of the real ones in the mean, and a quarter of them.
    """
    degrees = {candidate.cp_degree for candidate in candidates}
    sizes = set()
    for degree in (min(degrees), max(degrees)):
        affordable = math.sqrt(_PROBE_MAX_PAIRS * degree)
        largest = min(max(shape.graph_sizes), affordable)
        sizes |= {_unit_size(part * largest, cp_degree=degree) for part in _PROBE_PARTS}
        most = max(
            -(-shape.graphs_per_step // (candidate.dp_degree * candidate.num_micro_batches))
            for candidate in candidates
            if candidate.cp_degree == degree
        )
        like = _unit_size(min(_root_mean_square(shape.graph_sizes), affordable), cp_degree=degree)
        most = min(most, _PROBE_MAX_PAIRS // like.num_pairs)
        sizes |= {like.model_copy(update={"num_graphs": count}) for count in (most // 4, most) if count > 1}
    return tuple(sorted(sizes, key=lambda size: (size.num_pairs, size.num_graphs, size.num_rows)))


def _root_mean_square(sizes: Sequence[int]) -> float:
    return math.sqrt(sum(size**2 for size in sizes) / len(sizes))


def _unit_size(num_nodes: float, *, cp_degree: int) -> UnitSize:
    """The part of a graph of about ``num_nodes`` nodes that lies on the fullest rank."""
    columns = max(cp_degree, math.ceil(num_nodes))
    return UnitSize(num_rows=-(-columns // cp_degree), num_columns=columns, num_shards=cp_degree)


def _link_bytes(shape: TransformerShape, *, cp_degree: int) -> tuple[int, ...]:
    work = mean_work((max(shape.graph_sizes),), num_graphs=1, cp_degree=cp_degree)
    shard = ring_shard_bytes(work, hidden_size=shape.hidden_size, element_bytes=ELEMENT_BYTES[shape.dtype])
    return tuple(sorted({*_PROBE_LINK_BYTES, int(shard)}))


def _check_profile(shape: JobShape, profile: Profile, num_ranks: int) -> None:
    if profile.key.shape != shape:
        asked, found = shape.model_dump(), profile.key.shape.model_dump()
        different = sorted(name for name in {*asked, *found} if asked.get(name) != found.get(name))
        facts = ", ".join(f"{name} {_short(asked.get(name))} against {_short(found.get(name))}" for name in different)
        raise ProfileMismatchError(
            f"the profile was measured for another job: {facts}; run the probe for this one", differences=different
        )
    if profile.key.num_ranks != num_ranks:
        raise ProfileMismatchError(
            f"the profile was measured with {profile.key.num_ranks} ranks, the job has {num_ranks}; run the probe with"
            " as many ranks as the job"
        )


def _short(value: object) -> str:
    """A value as an error prints it: the sizes of thousands of graphs would bury the rest."""
    text = str(value)
    return text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}…"
