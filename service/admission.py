"""Who may start: first come, first served, as long as what is promised fits into the cluster. Pure decisions.

Comes in: the waiting jobs in their order, the jobs that hold a promise, the cluster. Goes out: which jobs to submit
now, and for each other one why not, in numbers. A job that the whole cluster could not hold steps aside, so it does not
block those behind it; one that is only too big for this moment keeps its place, so small ones never starve it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.cluster import ClusterSpec, NodeSpec
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
    free = (total - sum((promised_to(job) for job in promised), Amount())).at_least_none()
    start: list[JobRecord] = []
    waiting: dict[str, Waiting] = {}
    blocked = False
    for job in queue:
        asked = asked_by(job.spec.resources)
        obstacle = why_never(job.spec.resources, cluster)
        if obstacle is not None:
            waiting[job.id] = _wait("never_fits", obstacle, asked=asked, available=total)
        elif blocked or not asked.fits(free):
            waiting[job.id] = _explain_queue(asked, free=free, total=total)
            blocked = True
        else:
            start.append(job)
            free -= asked
    return Admission(start=tuple(start), waiting=waiting)


def asked_by(resources: ResourcesSpec) -> Amount:
    """What all workers of a job take together, if its plan uses as many as it may."""
    return _all_workers(resources, resources.num_workers)


def promised_to(job: JobRecord) -> Amount:
    """What a submitted job holds: the ranks of its plan, and all that it asked for before it has one."""
    return _all_workers(job.spec.resources, job.world_size or job.spec.resources.num_workers)


def _all_workers(resources: ResourcesSpec, num_workers: int) -> Amount:
    return Amount(num_workers * resources.cpus_per_worker, num_workers * resources.gpus_per_worker)


def why_never(resources: ResourcesSpec, cluster: ClusterSpec) -> str | None:
    """Why even the empty cluster could not hold these workers, or None if it could."""
    asked, total = asked_by(resources), Amount(cluster.num_cpus, cluster.num_gpus)
    if asked.gpus > total.gpus + _EPSILON:
        return f"asked {_count(asked.gpus, 'GPU')}, the cluster has {total.gpus:g}"
    if asked.cpus > total.cpus + _EPSILON:
        return f"asked {_count(asked.cpus, 'CPU')}, the cluster has {total.cpus:g}"
    holds = sum(_workers_on(node, resources) for node in cluster.nodes)
    if holds < resources.num_workers:
        worker = _words(Amount(resources.cpus_per_worker, resources.gpus_per_worker))
        return (
            f"asked {_count(resources.num_workers, 'worker')} of {worker} each, which must lie within one node;"
            f" the {_count(len(cluster.nodes), 'node')} of the cluster can hold {holds}"
        )
    return None


def _workers_on(node: NodeSpec, resources: ResourcesSpec) -> int:
    by_cpus = int((node.num_cpus + _EPSILON) // resources.cpus_per_worker)
    if not resources.gpus_per_worker:
        return by_cpus
    return min(by_cpus, int((node.num_gpus + _EPSILON) // resources.gpus_per_worker))


def _explain_queue(asked: Amount, *, free: Amount, total: Amount) -> Waiting:
    if asked.fits(free):
        text = f"asked {_words(asked)}, and that much is free, but an older job that asks more comes first"
        return _wait("older_job_first", text, asked=asked, available=free)
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
