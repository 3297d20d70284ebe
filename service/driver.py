"""One job from PENDING to its end: profile, plan, train, result. Runs in a process of its own on the cluster.

    PENDING ─▶ PROFILING ─▶ PLANNING ─▶ SCHEDULING ─▶ RUNNING ⇄ RESTARTING ─▶ FINISHED
               data set,     planner     ranks are     (the recorder,            result
               profile       actor       started       in the controller)

The driver decides nothing about training and does nothing that Ray does: it moves values between the rooms and writes
each step into the store. Whatever happens ends in a terminal state with a reason; ``driver_watch`` sees to the rest.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from planner.cluster import ClusterSpec
from planner.pair_index import check_pair_index
from planner.plan import MegaGraphPlan, MQGNNPlan
from planner.profiles import JobShape, ProbeRequest, Profile, ProfileKey, TransformerShape
from service.driver_watch import DriverWatch, StopOrder, sigint_raises
from service.failures import explain
from service.outcome import build_result
from service.policies import why_unreadable
from service.settings import Settings
from service.spec import JobSpec, JobState
from service.states import IllegalMoveError
from service.store.insistence import insist
from service.store.job_store import JobStore
from service.store.records import JobRecord, Reason
from workers.data.datasets import load_dataset
from workers.data.graph import GraphDataset
from workers.data.paths import DataPaths
from workers.probe.describe import describe_job, profile_key
from workers.training.export_config import check_fits
from workers.training.folder import Folder

_log = logging.getLogger(__name__)

LEAVE_S = 10.0  # leaving the cluster takes about a second

AnyPlan = MegaGraphPlan | MQGNNPlan


@dataclass(frozen=True)
class RunOrder:
    """What the engine needs to run the ranks of a job; ``job_dir`` is where they leave everything.

    ``model_from`` is the export of the job whose model is used, None to train.
    """

    job_id: str
    spec: JobSpec
    plan: AnyPlan
    data: DataPaths
    job_dir: str
    model_from: str | None = None


class Engine(Protocol):
    """The cluster from inside a driver. Every call may be interrupted by ``KeyboardInterrupt``."""

    def connect(self) -> None:
        """Join the cluster; whatever is slow to start begins to start now."""
        ...

    def shape(self) -> ClusterSpec:
        """The live nodes."""
        ...

    def measure(self, request: ProbeRequest, *, spec: JobSpec, data: DataPaths) -> Profile:
        """Run the probes on ranks like those that will train."""
        ...

    def plan(self, shape: JobShape, *, cluster: ClusterSpec, profiles: Sequence[Profile], most_ranks: int) -> AnyPlan:
        """Ask the planner actor, with a profile for every number of ranks that it may choose."""
        ...

    def train(self, order: RunOrder) -> dict[str, float]:
        """Run the ranks to their end; the figures of the last report."""
        ...

    def close(self) -> None:
        """End all that this driver started on the cluster and leave it. Safe to call in any condition."""
        ...


@dataclass(frozen=True)
class _End:
    target: JobState | None
    reason: Reason | None = None


def drive(
    job_id: str,
    *,
    store: JobStore,
    settings: Settings,
    engine: Engine,
    force_end: Callable[[StopOrder], None],
) -> JobState:
    """Take the job to its end and say which one that was. Must run in the main thread, because it heeds SIGINT.

    ``force_end`` ends the process when the main thread does not obey an order to stop.
    """
    job = insist(lambda: _claim(job_id, store))
    if job is None:
        return store.get_job(job_id).state
    watch = DriverWatch(job_id, store=store, max_runtime_s=job.spec.limits.max_runtime_s, force_end=force_end)
    run = _Run(job, store=store, settings=settings, engine=engine)
    with sigint_raises():
        end = _end_of(run, watch)
        with _within(LEAVE_S, end, force_end):
            if end.target is not JobState.FINISHED:
                _leave(engine)  # before the move: who sees the job ended finds nothing of it on the cluster
        watch.stop()
        insist(lambda: _write_end(end, job_id, store))
        with _within(LEAVE_S, end, force_end):
            _leave(engine)
    return store.get_job(job_id).state


def _claim(job_id: str, store: JobStore) -> JobRecord | None:
    """Take the job up, which exactly one driver can. None: it is another's, or it was cancelled before."""
    job = store.get_job(job_id)
    reason = why_unreadable(job)
    target = JobState.PROFILING if reason is None else JobState.FAILED
    if job.cancel_requested_at is not None:
        target = JobState.CANCELLED
        reason = Reason(code="cancelled", text="cancelled by its user before its driver began")
    try:
        job = store.move(job_id, target, reason=reason, only_from=JobState.PENDING)
    except IllegalMoveError as error:
        _log.warning("another driver had it, this one has nothing to do: %s", error)
        return None
    return None if job.ended else job


def _end_of(run: "_Run", watch: DriverWatch) -> _End:
    try:
        return _attempt(run, watch)
    except KeyboardInterrupt:
        return _stopped(watch)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on nothing changes how the job ends


def _attempt(run: "_Run", watch: DriverWatch) -> _End:
    try:
        watch.start()
        run.to_end()
        return _End(target=JobState.FINISHED)
    except (KeyboardInterrupt, SystemExit):  # of StopOrderedError Ray may leave the former; SIGTERM is the latter
        return _stopped(watch)
    except Exception as error:
        if watch.order is not None:  # taking a run apart makes calls fail in many ways; the order is the reason
            return _stopped(watch)
        _log.exception("job %s failed", run.job.id)
        return _End(target=JobState.FAILED, reason=explain(error))


def _stopped(watch: DriverWatch) -> _End:
    order = watch.interrupted()
    return _End(target=order.target, reason=order.reason)


def _write_end(end: _End, job_id: str, store: JobStore) -> None:
    if end.target is None:
        return
    try:
        if end.target is JobState.FINISHED:
            _catch_up(job_id, store)
        store.move(job_id, end.target, reason=end.reason)
    except IllegalMoveError:
        _log.exception("job %s was ended by another hand before it could become %s", job_id, end.target)


def _catch_up(job_id: str, store: JobStore) -> None:
    """Ranks that have finished did run, also when the database took none of their reports."""
    state = store.get_job(job_id).state
    if state in (JobState.SCHEDULING, JobState.RESTARTING):
        store.move(job_id, JobState.RUNNING, only_from=state)


@contextmanager
def _within(seconds: float, end: _End, force_end: Callable[[StopOrder], None]) -> Iterator[None]:
    """End the process if the block takes longer; Ray then clears away all that it owned."""
    reason = end.reason or Reason(code="ended", text=f"the job is {end.target}")
    timer = threading.Timer(seconds, force_end, [StopOrder(target=end.target, reason=reason)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave(engine: Engine) -> None:
    """A cluster that cannot be left in order loses what we have there when this process ends."""
    try:
        engine.close()
    except Exception:
        _log.exception("the cluster could not be left in order")


class _Run:
    """The phases of one job."""

    def __init__(self, job: JobRecord, *, store: JobStore, settings: Settings, engine: Engine) -> None:
        self.job = job
        self._store = store
        self._settings = settings
        self._engine = engine
        self._data = DataPaths(root=settings.data_root, cache=settings.cache)

    def to_end(self) -> None:
        """All phases, with the result stored at the end. Raises whatever goes wrong."""
        self._engine.connect()
        dataset = self._prepare_data()
        if self._model_from is not None:
            check_fits(Folder(self._model_from), spec=self.job.spec, dataset=dataset)
        most_ranks = self.job.spec.resources.num_workers
        shape = describe_job(self.job.spec.train_spec(), dataset, most_ranks=most_ranks)
        cluster = self._engine.shape()
        if isinstance(shape, TransformerShape):
            check_pair_index(
                shape,
                cluster=cluster,
                num_ranks=most_ranks,
                cpus_per_rank=self.job.spec.resources.cpus_per_worker,
                gpus_per_rank=self.job.spec.resources.gpus_per_worker,
            )
        profiles = [self._find_or_measure(shape, cluster, count) for count in self._rank_counts(shape)]
        self._move(JobState.PLANNING)
        plan = self._make_plan(shape, cluster, profiles)
        self._move(JobState.SCHEDULING)
        last = self._engine.train(
            RunOrder(
                job_id=self.job.id,
                spec=self.job.spec,
                plan=plan,
                data=self._data,
                job_dir=self._settings.job_uri(self.job.id),
                model_from=self._model_from,
            )
        )
        insist(lambda: self._store_result(last, plan))

    @property
    def _model_from(self) -> str | None:
        """The export of the job whose model is used."""
        source = self.job.spec.from_job
        return None if source is None else f"{self._settings.job_uri(source)}/export"

    def _store_result(self, last: dict[str, float], plan: AnyPlan) -> None:
        result = build_result(self.job.id, last=last, plan=plan, store=self._store, settings=self._settings)
        self._store.set_result(self.job.id, result)

    def _prepare_data(self) -> GraphDataset:
        """Here and not on the ranks, so that a fault in the data ends the job before any rank starts."""
        self._tell("dataset", text=f"preparing {_name_of_data(self.job.spec)}")
        dataset = load_dataset(self.job.spec.dataset, paths=self._data)
        nodes, edges = sum(g.num_nodes for g in dataset.graphs), sum(g.num_edges for g in dataset.graphs)
        self._tell(
            "dataset",
            text=f"{dataset.name}: {len(dataset.graphs)} graph(s), {nodes} nodes, {edges} edges",
            num_graphs=len(dataset.graphs),
            num_nodes=nodes,
            num_edges=edges,
        )
        return dataset

    def _rank_counts(self, shape: JobShape) -> tuple[int, ...]:
        """The numbers of ranks to plan for; the planner is asked only where there is a choice."""
        resources = self.job.spec.resources
        if resources.fewest_workers == resources.num_workers:
            return (resources.num_workers,)
        from planner.rank_counts import rank_counts_to_probe

        return rank_counts_to_probe(shape, fewest=resources.fewest_workers, most=resources.num_workers)

    def _find_or_measure(self, shape: JobShape, cluster: ClusterSpec, num_ranks: int) -> Profile:
        key = self._profile_key(shape, cluster, num_ranks)
        profile = self._store.find_profile(key.fingerprint)
        if profile is not None:
            self._tell("profile", text=f"profile {key.fingerprint} is known", fingerprint=key.fingerprint, cached=True)
            return profile
        self._tell("profile", text=f"measuring on {key.num_ranks} rank(s)", fingerprint=key.fingerprint, cached=False)
        from planner.fitting import is_rough  # brings scipy along, which a job with a known profile never needs
        from planner.planner import probes_for

        request = probes_for(shape, key=key, cluster=cluster)
        profile = self._engine.measure(request, spec=self.job.spec, data=self._data)
        if not is_rough(profile):  # the next job like this one measures anew
            self._store.save_profile(profile)
        text = f"measured in {profile.duration_s:.1f} s"
        self._tell("profile", text=text, fingerprint=key.fingerprint, duration_s=profile.duration_s)
        return profile

    def _profile_key(self, shape: JobShape, cluster: ClusterSpec, num_ranks: int) -> ProfileKey:
        resources = self.job.spec.resources
        return profile_key(
            shape,
            cluster=cluster,
            num_ranks=num_ranks,
            cpus_per_rank=resources.cpus_per_worker,
            gpus_per_rank=resources.gpus_per_worker,
        )

    def _make_plan(self, shape: JobShape, cluster: ClusterSpec, profiles: Sequence[Profile]) -> AnyPlan:
        most = self.job.spec.resources.num_workers
        plan = self._engine.plan(shape, cluster=cluster, profiles=profiles, most_ranks=most)
        self._store.save_plan(self.job.id, plan)
        self._tell("plan", text=" ".join(plan.reasons) or f"a plan for {plan.world_size} rank(s)", kind=plan.kind)
        return plan

    def _move(self, target: JobState) -> None:
        _log.info("%s", target)
        self._store.move(self.job.id, target)

    def _tell(self, type_: str, *, text: str, **facts: object) -> None:
        _log.info("%s: %s", type_, text)
        self._store.add_event(self.job.id, type_, {"text": text, **facts})


def _name_of_data(spec: JobSpec) -> str:
    return spec.dataset.name or f"the files in {spec.dataset.path}"
