"""Who may start: first come, first served, as long as what is promised fits into the cluster. Pure decisions.

A worker lies within one node, so what is free is counted node by node: promised workers are laid out first-fit, the
largest first. Ray may lay them out otherwise, and a job can then still wait for its place; it does so in its driver.

Comes in: the head of the queue in its order, the jobs that hold a promise, the cluster. Goes out: which jobs to submit
now, and for each other one why not, in numbers. A job that the whole cluster could not hold steps aside, so it does not
block those behind it; one that is only too big for this moment keeps its place, so small ones never starve it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.cluster import ClusterSpec
from service.spec import ResourcesSpec
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
        obstacle = why_never(job.spec.resources, cluster)
        if obstacle is not None:
            waiting[job.id] = _wait("never_fits", obstacle, asked=asked_by(job.spec.resources), available=total)
            continue
        left = lay_out(_worker_of(job.spec.resources), job.spec.resources.num_workers, room)
        if blocked or left is None:
            waiting[job.id] = _explain_queue(job.spec.resources, room=room, total=total, fits=left is not None)
            blocked = True
        else:
            start.append(job)
            room = left
    return Admission(start=tuple(start), waiting=waiting)


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
    workers = [_worker_of(job.spec.resources) for job in promised for _ in range(_ranks_of(job))]
    for worker in sorted(workers, key=lambda each: (each.gpus, each.cpus), reverse=True):
        left = lay_out(worker, 1, room)
        if left is None and room:
            most = max(range(len(room)), key=lambda place: (room[place].cpus, room[place].gpus))
            room[most] = (room[most] - worker).at_least_none()
        else:
            room = left or room
    return room


def asked_by(resources: ResourcesSpec) -> Amount:
    """What all workers of a job take together, if its plan uses as many as it may."""
    return _worker_of(resources).times(resources.num_workers)


def promised_to(job: JobRecord) -> Amount:
    """What a submitted job holds: the ranks of its plan, and all that it asked for before it has one."""
    return _worker_of(job.spec.resources).times(_ranks_of(job))


def _ranks_of(job: JobRecord) -> int:
    return job.world_size or job.spec.resources.num_workers


def _worker_of(resources: ResourcesSpec) -> Amount:
    return Amount(resources.cpus_per_worker, resources.gpus_per_worker)


def why_never(resources: ResourcesSpec, cluster: ClusterSpec) -> str | None:
    """Why even the empty cluster could not hold these workers, or None if it could."""
    asked, total = asked_by(resources), Amount(cluster.num_cpus, cluster.num_gpus)
    if asked.gpus > total.gpus + _EPSILON:
        return f"asked {_count(asked.gpus, 'GPU')}, the cluster has {total.gpus:g}"
    if asked.cpus > total.cpus + _EPSILON:
        return f"asked {_count(asked.cpus, 'CPU')}, the cluster has {total.cpus:g}"
    worker = _worker_of(resources)
    holds = sum(_how_many(worker, Amount(node.num_cpus, node.num_gpus)) for node in cluster.nodes)
    if holds < resources.num_workers:
        return (
            f"asked {_count(resources.num_workers, 'worker')} of {_words(worker)} each, which must lie within one node;"
            f" the {_count(len(cluster.nodes), 'node')} of the cluster can hold {holds}"
        )
    return None


def _how_many(worker: Amount, room: Amount) -> int:
    by_cpus = int((room.cpus + _EPSILON) // worker.cpus)
    return min(by_cpus, int((room.gpus + _EPSILON) // worker.gpus)) if worker.gpus else by_cpus


def _explain_queue(resources: ResourcesSpec, *, room: Sequence[Amount], total: Amount, fits: bool) -> Waiting:
    asked, free = asked_by(resources), sum(room, Amount())
    if fits:
        text = f"asked {_words(asked)}, and that much is free, but an older job that asks more comes first"
        return _wait("older_job_first", text, asked=asked, available=free)
    if asked.fits(free):
        worker, holds = _worker_of(resources), sum(_how_many(_worker_of(resources), each) for each in room)
        text = (
            f"asked {_count(resources.num_workers, 'worker')} of {_words(worker)}, each within one node; {_words(free)}"
            f" are free, in pieces that hold {holds}"
        )
        return _wait("resources_busy", text, asked=asked, available=free)
    short_of_cpus = asked.cpus > free.cpus + _EPSILON
    left, has = (free.cpus, total.cpus) if short_of_cpus else (free.gpus, total.gpus)
    unit = "CPU" if short_of_cpus else "GPU"
    text = f"asked {_words(asked)}; {left:g} of {_count(has, unit)} are not promised to running jobs"
    return _wait("resources_busy", text, asked=asked, available=free)


def _wait(code: str, reason: str, *, asked: Amount, available: Amount) -> Waiting:
    return Waiting(code=code, reason=reason, asked=asked.as_dict(), available=available.as_dict())


def _words(amount: Amount) -> str:
    cpus = _count(amount.cpus, "CPU")
    return f"{cpus} and {_count(amount.gpus, 'GPU')}" if amount.gpus else cpus


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
