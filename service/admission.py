"""Who may start: first come, first served, as long as what is promised fits into the cluster. Pure decisions.

A worker lies within one node, so what is free is counted node by node: promised workers are laid out first-fit, the
largest first. Ray may lay them out otherwise, and a job can then still wait for its place; it does so in its driver.
Ranks and the actors that sample for them are one request: both start, or neither.

Comes in: the head of the queue in its order, the jobs that hold a promise, the cluster. Goes out: which jobs to submit
now, and for each other one why not, in numbers. A job that the whole cluster could not hold steps aside, so it does not
block those behind it; one that is only too big for this moment keeps its place, so small ones never starve it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.cluster import ClusterSpec
from service.spec import JobSpec
from service.store.records import JobRecord, Waiting

_EPSILON = 1e-9  # fractions of CPUs are floats: 3 x 0.1 must fit into 0.3


@dataclass(frozen=True)
class Amount:
    """Logical CPUs and GPUs, of a job or of a cluster."""

    cpus: float = 0.0
    gpus: float = 0.0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.cpus - other.cpus, self.gpus - other.gpus)

    def times(self, count: int) -> "Amount":
        """This, ``count`` times."""
        return Amount(self.cpus * count, self.gpus * count)

    def at_least_none(self) -> "Amount":
        """This without debts: a node that died takes more away than is left, of its own resource only."""
        return Amount(max(self.cpus, 0.0), max(self.gpus, 0.0))

    def fits(self, room: "Amount") -> bool:
        """Whether ``room`` holds this."""
        return self.cpus <= room.cpus + _EPSILON and self.gpus <= room.gpus + _EPSILON

    def as_dict(self) -> dict[str, float]:
        """For a waiting reason."""
        return {"cpus": round(self.cpus, 3), "gpus": round(self.gpus, 3)}


@dataclass(frozen=True)
class Admission:
    """Jobs to submit now, in order, and the reasons of all others by job id."""

    start: tuple[JobRecord, ...] = ()
    waiting: dict[str, Waiting] = field(default_factory=dict)


def admit(queue: Sequence[JobRecord], *, promised: Sequence[JobRecord], cluster: ClusterSpec) -> Admission:
    """Walk the queue once. ``promised`` are the jobs submitted and not ended; a driver itself takes nothing."""
    total = Amount(cluster.num_cpus, cluster.num_gpus)
    room = _room_beside(promised, cluster)
    start: list[JobRecord] = []
    waiting: dict[str, Waiting] = {}
    blocked = False
    for job in queue:
        obstacle = why_never(job.spec, cluster)
        if obstacle is not None:
            waiting[job.id] = _wait("never_fits", obstacle, asked=asked_by(job.spec), available=total)
            continue
        left = _lay_out_all(_parts_of(job.spec), room)
        if blocked or left is None:
            waiting[job.id] = _explain_queue(job.spec, room=room, total=total, fits=left is not None)
            blocked = True
        else:
            start.append(job)
            room = left
    return Admission(start=tuple(start), waiting=waiting)


@dataclass(frozen=True)
class Part:
    """Processes of a job that are alike: ``count`` of ``each``, which people call ``word``."""

    each: Amount
    count: int
    word: str


def ranks_of(spec: JobSpec, *, num_ranks: int) -> Part:
    """The ranks of a job with so many of them."""
    return Part(Amount(spec.resources.cpus_per_worker, spec.resources.gpus_per_worker), num_ranks, "worker")


def actors_of(spec: JobSpec) -> Part:
    """The actors that sample for the ranks, none where these do it themselves."""
    rule = spec.training.sampling
    return Part(Amount(rule.cpus_per_actor), rule.num_actors if rule.is_remote else 0, "sampling actor")


def lay_out(worker: Amount, count: int, room: Sequence[Amount]) -> list[Amount] | None:
    """What each node has left with ``count`` more workers, the first nodes filled first; None if they do not fit."""
    left = list(room)
    for place, free in enumerate(left):
        here = min(count, _how_many(worker, free))
        left[place] = free - worker.times(here)
        count -= here
    return None if count else left


def _room_beside(promised: Sequence[JobRecord], cluster: ClusterSpec) -> list[Amount]:
    """What each node has free; workers whose node died are taken from the roomiest of the others."""
    room = [Amount(node.num_cpus, node.num_gpus) for node in cluster.nodes]
    workers = [
        part.each
        for job in promised
        for part in _parts_of(job.spec, num_ranks=_ranks_of(job))
        for _ in range(part.count)
    ]
    for worker in sorted(workers, key=lambda each: (each.gpus, each.cpus), reverse=True):
        left = lay_out(worker, 1, room)
        if left is None and room:
            most = max(range(len(room)), key=lambda place: (room[place].cpus, room[place].gpus))
            room[most] = (room[most] - worker).at_least_none()
        else:
            room = left or room
    return room


def _lay_out_all(parts: Sequence[Part], room: Sequence[Amount]) -> list[Amount] | None:
    """What each node has left with all ``parts``; None if they do not fit, whichever of them is laid out first."""
    for order in (parts, parts[::-1]):
        left: list[Amount] | None = list(room)
        for part in order:
            left = None if left is None else lay_out(part.each, part.count, left)
        if left is not None:
            return left
    return None


def asked_by(spec: JobSpec) -> Amount:
    """What all workers and actors of a job take together, if its plan uses as many as it may."""
    return _sum_of(_parts_of(spec))


def promised_to(job: JobRecord) -> Amount:
    """What a submitted job holds: the ranks of its plan, or all that it asked for before it has one; and its actors."""
    return _sum_of(_parts_of(job.spec, num_ranks=_ranks_of(job)))


def _ranks_of(job: JobRecord) -> int:
    return job.world_size or job.spec.resources.num_workers


def _parts_of(spec: JobSpec, *, num_ranks: int | None = None) -> tuple[Part, ...]:
    """The ranks of a job, as many as it may have or ``num_ranks``, and its actors if it has any."""
    ranks, actors = ranks_of(spec, num_ranks=num_ranks or spec.resources.num_workers), actors_of(spec)
    return (ranks, actors) if actors.count else (ranks,)


def _sum_of(parts: Sequence[Part]) -> Amount:
    return sum((part.each.times(part.count) for part in parts), Amount())


def why_never(spec: JobSpec, cluster: ClusterSpec) -> str | None:
    """Why even the empty cluster could not hold this job's workers and actors, or None if it could."""
    parts, total = _parts_of(spec), Amount(cluster.num_cpus, cluster.num_gpus)
    asked = _sum_of(parts)
    of_whom = f" for {_who(parts)}" if len(parts) > 1 else ""
    if asked.gpus > total.gpus + _EPSILON:
        return f"asked {_count(asked.gpus, 'GPU')}{of_whom}, the cluster has {total.gpus:g}"
    if asked.cpus > total.cpus + _EPSILON:
        return f"asked {_count(asked.cpus, 'CPU')}{of_whom}, the cluster has {total.cpus:g}"
    nodes = [Amount(node.num_cpus, node.num_gpus) for node in cluster.nodes]
    if _lay_out_all(parts, nodes) is None:
        return (
            f"asked {_who(parts)} each, which must lie within one node; the {_count(len(nodes), 'node')} of the cluster"
            f" can hold {_held_by(parts, nodes)}"
        )
    return None


def _who(parts: Sequence[Part]) -> str:
    return " and ".join(f"{_count(part.count, part.word)} of {_words(part.each)}" for part in parts)


def _held_by(parts: Sequence[Part], room: Sequence[Amount]) -> str:
    """How many of the only part ``room`` holds; or of the first, and of the others beside it."""
    found, left = [], list(room)
    for part in parts:
        holds = sum(_how_many(part.each, free) for free in left)
        if len(parts) == 1:
            return f"{holds}"
        holds = min(holds, part.count)
        left = lay_out(part.each, holds, left) or left
        found.append(_count(holds, part.word))
    return " and ".join(found)


def _how_many(worker: Amount, room: Amount) -> int:
    by_cpus = int((room.cpus + _EPSILON) // worker.cpus)
    return min(by_cpus, int((room.gpus + _EPSILON) // worker.gpus)) if worker.gpus else by_cpus


def _explain_queue(spec: JobSpec, *, room: Sequence[Amount], total: Amount, fits: bool) -> Waiting:
    parts = _parts_of(spec)
    asked, free = _sum_of(parts), sum(room, Amount())
    if fits:
        text = f"asked {_words(asked)}, and that much is free, but an older job that asks more comes first"
        return _wait("older_job_first", text, asked=asked, available=free)
    if asked.fits(free):
        text = (
            f"asked {_who(parts)}, each within one node; {_words(free)} are free, in pieces that hold"
            f" {_held_by(parts, room)}"
        )
        return _wait("resources_busy", text, asked=asked, available=free)
    short_of_cpus = asked.cpus > free.cpus + _EPSILON
    left, has = (free.cpus, total.cpus) if short_of_cpus else (free.gpus, total.gpus)
    unit = "CPU" if short_of_cpus else "GPU"
    of_whom = f" for {_who(parts)}" if len(parts) > 1 else ""
    text = f"asked {_words(asked)}{of_whom}; {left:g} of {_count(has, unit)} are not promised to running jobs"
    return _wait("resources_busy", text, asked=asked, available=free)


def _wait(code: str, reason: str, *, asked: Amount, available: Amount) -> Waiting:
    return Waiting(code=code, reason=reason, asked=asked.as_dict(), available=available.as_dict())


def _words(amount: Amount) -> str:
    cpus = _count(amount.cpus, "CPU")
    return f"{cpus} and {_count(amount.gpus, 'GPU')}" if amount.gpus else cpus


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
