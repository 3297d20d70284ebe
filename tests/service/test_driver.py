"""A job from PENDING to each of its ends, with an engine in place of the cluster; data and store are real."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from planner.cluster import ClusterSpec
from planner.errors import NoPlanFitsError
from planner.plan import MegaGraphPlan
from planner.profiles import JobShape, ProbeRequest, Profile, StageSample
from service import driver
from service.driver import RunOrder, drive
from service.driver_watch import StopOrder
from service.failures import RunFailedError
from service.settings import Settings
from service.spec import JobSpec, JobState
from service.store import insistence
from service.store.job_store import JobStore
from service.store.records import JobRecord
from tests.kit.builders import cluster_spec, job_document, metric, two_rank_plan
from workers.data.paths import DataPaths
from workers.training.export_config import FORMAT
from workers.training.folder import Folder

LAST = {"test_accuracy": 0.8, "val_accuracy": 0.9, "best_epoch": 3.0, "done": 1.0}


class PlayedEngine:
    """Does at once what a cluster does slowly; ``during`` runs inside the phase of that name."""

    def __init__(self, store: JobStore, **during: Callable[[], Any]) -> None:
        self._store = store
        self._during = during
        self.calls: list[str] = []
        self.planned_for: list[int] = []
        self.order: RunOrder | None = None

    def connect(self) -> None:
        self._enter("connect")

    def shape(self) -> ClusterSpec:
        return cluster_spec()

    def measure(self, request: ProbeRequest, *, spec: JobSpec, data: DataPaths) -> Profile:
        self._enter("measure")
        return Profile(key=request.key, measured_at="2026-11-29T00:00:00Z", duration_s=0.5)

    def plan(
        self, shape: JobShape, *, cluster: ClusterSpec, profiles: Sequence[Profile], most_ranks: int
    ) -> MegaGraphPlan:
        self.planned_for = [profile.key.num_ranks for profile in profiles]
        self._enter("plan")
        return two_rank_plan()

    def train(self, order: RunOrder) -> dict[str, float]:
        self.order = order
        self._enter("train")
        self._store.move(order.job_id, JobState.RUNNING)
        points = [metric(step, name="step_time_s", value=value) for step, value in ((1, 9.0), (2, 0.1), (3, 0.2))]
        self._store.add_metrics(order.job_id, [*points, metric(3, name="peak_memory_bytes", value=5e6, rank=1)])
        return LAST

    def close(self) -> None:
        self.calls.append("close")

    def _enter(self, phase: str) -> None:
        self.calls.append(phase)
        self._during.get(phase, lambda: None)()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(tmp_path: Path, cache: Path) -> Settings:
    return Settings(home=tmp_path, cache=cache)


def submit(store: JobStore, **changes: Any) -> JobRecord:
    job = store.create_job(JobSpec.model_validate(job_document(**changes)))[0]
    return store.set_submission(job.id, job.id)


def never(order: StopOrder) -> None:
    raise AssertionError(f"the driver was forced to end: {order}")


def run(store: JobStore, settings: Settings, job: JobRecord, **during: Callable[[], Any]) -> PlayedEngine:
    engine = PlayedEngine(store, **during)
    drive(job.id, store=store, settings=settings, engine=engine, force_end=never)
    return engine


def fail_with(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def states(store: JobStore, job: JobRecord) -> list[JobState]:
    return [move.target for move in store.transitions(job.id)]


def reason_of(store: JobStore, job: JobRecord) -> tuple[str, str]:
    reason = store.get_job(job.id).reason
    assert reason is not None
    return reason.code, reason.text


def test_a_job_goes_through_all_its_states(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job)
    assert states(store, job) == ["PENDING", "PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED"]


def test_the_result_holds_what_was_measured_beside_what_was_predicted(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job)
    result = store.get_job(job.id).result
    assert result is not None
    assert (result["test_accuracy"], result["best_epoch"]) == (0.8, 3)
    assert (result["step_time_s"], result["predicted_step_time_s"]) == (pytest.approx(0.15), 0.02)
    assert (result["peak_memory_bytes"], result["predicted_memory_bytes"]) == ({"1": 5_000_000}, [1_000_000, 1_000_000])


@pytest.mark.parametrize("is_blocked", [True, False])
def test_a_signal_that_comes_before_the_watch_begins_ends_the_job(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, is_blocked: bool
) -> None:
    job, start = submit(store), driver.DriverWatch.start

    def start_late(watch: driver.DriverWatch) -> None:
        signal.raise_signal(signal.SIGINT)
        start(watch)

    if is_blocked:  # as Ray starts its drivers
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        monkeypatch.setattr(driver.DriverWatch, "start", start_late)
    run(store, settings, job)
    assert reason_of(store, job)[0] == "driver_stopped"


def test_the_plan_is_stored_before_the_ranks_start(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    seen: list[object] = []
    engine = run(store, settings, job, train=lambda: seen.append(store.get_plan(job.id)))
    assert engine.order is not None
    assert seen == [engine.order.plan]


def test_a_profile_is_measured_once_for_equal_jobs(store: JobStore, settings: Settings) -> None:
    assert "measure" in run(store, settings, submit(store)).calls
    assert "measure" not in run(store, settings, submit(store)).calls


def test_every_number_of_ranks_that_the_plan_may_use_is_measured(store: JobStore, settings: Settings) -> None:
    engine = run(store, settings, submit(store, resources={"min_workers": 1, "num_workers": 3}))
    assert engine.planned_for == [1, 2, 3]
    assert engine.calls.count("measure") == 3


def test_a_job_with_a_plan_says_how_many_ranks_it_has(store: JobStore, settings: Settings) -> None:
    job = submit(store, resources={"min_workers": 1, "num_workers": 3})
    assert job.world_size is None
    run(store, settings, job)
    assert store.get_job(job.id).world_size == 2


def test_a_rough_profile_is_used_and_not_kept(store: JobStore, settings: Settings) -> None:
    class Disturbed(PlayedEngine):
        def measure(self, request: ProbeRequest, *, spec: JobSpec, data: DataPaths) -> Profile:
            stage = StageSample(
                stage="compute", num_threads=1, batch_size=8, seconds=1.0, p95_s=9.0, num_bytes=0, peak_bytes=0
            )
            return super().measure(request, spec=spec, data=data).model_copy(update={"stages": (stage,)})

    job = submit(store)
    engine = Disturbed(store)
    assert drive(job.id, store=store, settings=settings, engine=engine, force_end=never) is JobState.FINISHED
    assert "measure" in run(store, settings, submit(store)).calls


def test_ranks_of_other_cpus_are_measured_anew(store: JobStore, settings: Settings) -> None:
    run(store, settings, submit(store))
    assert "measure" in run(store, settings, submit(store, resources={"cpus_per_worker": 2})).calls


def test_a_profile_is_measured_again_for_another_model(store: JobStore, settings: Settings) -> None:
    run(store, settings, submit(store))
    wider = {"name": "graphormer", "hidden_size": 32, "num_heads": 4}
    assert "measure" in run(store, settings, submit(store, model=wider)).calls


def test_every_phase_is_told_to_those_who_follow(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job)
    told = [event.type for event in store.events_after(job.id) if event.type != "state"]
    assert told == ["dataset", "dataset", "profile", "profile", "plan"]


def test_a_data_set_that_is_not_there_fails_the_job_before_any_rank(store: JobStore, settings: Settings) -> None:
    job = submit(store, dataset={"path": "/nowhere/to/be/found"})
    engine = run(store, settings, job)
    assert store.get_job(job.id).state is JobState.FAILED
    assert reason_of(store, job)[0] == "dataset_not_found"
    assert "/nowhere/to/be/found" in reason_of(store, job)[1]
    assert "train" not in engine.calls


def test_an_error_of_ours_becomes_the_reason(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job, plan=fail_with(NoPlanFitsError("asked 9 ranks, 4 heads")))
    assert states(store, job)[-2:] == ["PLANNING", "FAILED"]
    assert reason_of(store, job) == ("no_plan_fits", "asked 9 ranks, 4 heads")


def test_ranks_that_failed_for_good_become_the_reason(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job, train=fail_with(RunFailedError("rank 1 died", code="worker_died")))
    assert reason_of(store, job) == ("worker_died", "rank 1 died")


def test_a_fault_of_our_own_still_ends_the_job(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job, measure=fail_with(ZeroDivisionError("division by zero")))
    assert reason_of(store, job) == ("driver_crashed", "ZeroDivisionError: division by zero")


@pytest.mark.parametrize("phase", ["connect", "measure", "plan", "train"])
def test_a_cancel_interrupts_every_phase(store: JobStore, settings: Settings, phase: str) -> None:
    job = submit(store)

    def cancel_and_wait() -> None:
        store.request_cancel(job.id)
        time.sleep(20)

    started = time.monotonic()
    engine = run(store, settings, job, **{phase: cancel_and_wait})
    assert time.monotonic() - started < 10
    assert store.get_job(job.id).state is JobState.CANCELLED
    assert engine.calls.index("close") == engine.calls.index(phase) + 1


def test_a_cancel_is_understood_from_the_plain_interrupt_that_ray_raises(store: JobStore, settings: Settings) -> None:
    job = submit(store)

    def cancel_inside_ray() -> None:
        store.request_cancel(job.id)
        try:
            time.sleep(20)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None

    run(store, settings, job, plan=cancel_inside_ray)
    assert store.get_job(job.id).state is JobState.CANCELLED
    assert reason_of(store, job)[0] == "cancelled"


def test_the_cluster_is_left_before_the_job_is_called_cancelled(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    seen: list[JobState] = []

    class Watched(PlayedEngine):
        def close(self) -> None:
            seen.append(store.get_job(job.id).state)

    def cancel_and_wait() -> None:
        store.request_cancel(job.id)
        time.sleep(20)

    engine = Watched(store, measure=cancel_and_wait)
    drive(job.id, store=store, settings=settings, engine=engine, force_end=never)
    assert seen[0] is JobState.PROFILING


def test_a_call_that_breaks_while_the_run_is_taken_apart_is_no_failure(store: JobStore, settings: Settings) -> None:
    job = submit(store)

    def cancel_and_break() -> None:
        store.request_cancel(job.id)
        try:
            time.sleep(20)
        except BaseException as error:
            raise RuntimeError("the actor died") from error

    run(store, settings, job, train=cancel_and_break)
    assert store.get_job(job.id).state is JobState.CANCELLED


def test_a_job_cancelled_before_its_driver_began_does_nothing(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    store.request_cancel(job.id)
    engine = run(store, settings, job)
    assert states(store, job) == ["PENDING", "CANCELLED"]
    assert "connect" not in engine.calls


def test_a_job_that_runs_too_long_fails_with_both_numbers(store: JobStore, settings: Settings) -> None:
    job = submit(store, limits={"max_runtime_s": 0.2})
    run(store, settings, job, train=lambda: time.sleep(20))
    assert reason_of(store, job)[0] == "max_runtime"
    assert "max_runtime_s is 0.2 s" in reason_of(store, job)[1]


def test_a_job_that_another_driver_had_is_left_alone(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    store.move(job.id, JobState.PROFILING)
    assert run(store, settings, job).calls == []
    assert store.get_job(job.id).state is JobState.PROFILING


def test_of_two_drivers_that_see_a_job_waiting_only_one_takes_it_up(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(store)
    look = store.get_job

    def look_and_be_overtaken(job_id: str) -> JobRecord:
        seen = look(job_id)
        if seen.state is JobState.PENDING:
            store.move(job_id, JobState.PROFILING)  # the other driver's claim
        return seen

    monkeypatch.setattr(store, "get_job", look_and_be_overtaken)
    assert run(store, settings, job).calls == []
    assert states(store, job) == ["PENDING", "PROFILING"]


def test_an_end_that_the_database_did_not_take_is_written_again(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insistence, "_PAUSE_S", 0)
    job, refusals = submit(store), [OperationalError("update", {}, Exception("database is locked"))]
    take = store.set_result

    def take_the_second_time(job_id: str, result: Any) -> None:
        if refusals:
            raise refusals.pop()
        take(job_id, result)

    monkeypatch.setattr(store, "set_result", take_the_second_time)
    run(store, settings, job)
    assert store.get_job(job.id).state is JobState.FINISHED


def test_a_result_that_the_database_was_too_busy_to_be_asked_for_is_asked_for_again(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insistence, "_PAUSE_S", 0)
    job, refusals = submit(store), [OperationalError("select", {}, Exception("database is locked"))]
    give = store.metrics

    def give_the_second_time(job_id: str, **what: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return give(job_id, **what)

    monkeypatch.setattr(store, "metrics", give_the_second_time)
    run(store, settings, job)
    assert store.get_job(job.id).state is JobState.FINISHED


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_none_of_whose_reports_could_be_written_still_finishes(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    job = submit(store)

    def train(self: PlayedEngine, order: RunOrder) -> dict[str, float]:
        for state in (JobState.RUNNING, JobState.RESTARTING) if restarted else ():
            store.move(order.job_id, state)
        return LAST

    monkeypatch.setattr(PlayedEngine, "train", train)
    run(store, settings, job)
    assert states(store, job)[-2:] == ["RUNNING", "FINISHED"]
    assert store.get_job(job.id).result is not None


def test_an_order_that_comes_while_the_cluster_is_left_does_not_change_the_end(
    store: JobStore, settings: Settings
) -> None:
    class Interrupted(PlayedEngine):
        def close(self) -> None:
            signal.raise_signal(signal.SIGINT)

    job = submit(store)
    engine = Interrupted(store, plan=fail_with(NoPlanFitsError("asked 9 ranks, 4 heads")))
    drive(job.id, store=store, settings=settings, engine=engine, force_end=never)
    assert reason_of(store, job)[0] == "no_plan_fits"


def test_a_failed_driver_that_hangs_while_it_leaves_the_cluster_is_ended_with_its_reason(
    store: JobStore, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LEAVE_S", 0.05)
    forced = list[StopOrder]()
    ended = threading.Event()

    def force_end(order: StopOrder) -> None:
        forced.append(order)
        ended.set()

    class Hanging(PlayedEngine):
        def close(self) -> None:
            ended.wait(10)

    job = submit(store)
    engine = Hanging(store, plan=fail_with(NoPlanFitsError("asked 9 ranks, 4 heads")))
    drive(job.id, store=store, settings=settings, engine=engine, force_end=force_end)
    assert (forced[0].target, forced[0].reason.code) == (JobState.FAILED, "no_plan_fits")


def test_a_cluster_that_cannot_be_left_in_order_does_not_change_the_end(store: JobStore, settings: Settings) -> None:
    class Stuck(PlayedEngine):
        def close(self) -> None:
            raise RuntimeError("the raylet is gone")

    job = submit(store)
    drive(job.id, store=store, settings=settings, engine=Stuck(store), force_end=never)
    assert store.get_job(job.id).state is JobState.FINISHED


def test_a_sigterm_is_a_failure_with_a_reason(store: JobStore, settings: Settings) -> None:
    job = submit(store)
    run(store, settings, job, train=lambda: sys.exit(15))  # what Ray makes of SIGTERM
    assert reason_of(store, job)[0] == "driver_stopped"


def test_a_model_that_does_not_fit_the_data_ends_the_job_before_any_rank_starts(
    store: JobStore, settings: Settings
) -> None:
    export = Folder(settings.job_uri("job-1")) / "export"
    job = submit(store, task="predict", from_job="job-1")
    assert "train" not in run(store, settings, job).calls
    assert reason_of(store, job)[0] == "checkpoint_invalid"  # nothing was exported
    model = {**job.spec.model.model_dump(mode="json"), "pooling": "none"}  # exports name what follows from the data
    config = {"format": FORMAT, "model": model, "num_features": 5, "num_classes": 4}
    export.write("config.json", json.dumps(config).encode())
    job = submit(store, task="predict", from_job="job-1")
    assert "train" not in run(store, settings, job).calls
    assert reason_of(store, job)[0] == "export_mismatch"
    export.write("config.json", json.dumps({**config, "num_features": 34}).encode())
    job = submit(store, task="predict", from_job="job-1")
    order = run(store, settings, job).order
    assert order is not None
    assert order.model_from == export.uri
    assert store.get_job(job.id).state is JobState.FINISHED
