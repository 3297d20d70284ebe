"""When a job has to end, and that it then does."""

import signal
import time

import pytest

from service.driver_watch import DriverWatch, StopOrder, StopOrderedError, find_order, sigint_raises
from service.spec import JobState
from service.store.job_store import JobStore
from service.store.records import JobRecord
from tests.kit.builders import job_spec


def submitted(store: JobStore) -> JobRecord:
    job = store.create_job(job_spec())[0]
    return store.set_submission(job.id, job.id)


def test_a_job_that_runs_within_its_limits_is_left_alone(store: JobStore) -> None:
    assert find_order(submitted(store), ran_s=10, max_runtime_s=11) is None


def test_a_cancel_is_an_order_that_says_where_the_job_was(store: JobStore) -> None:
    job = submitted(store)
    store.move(job.id, JobState.PROFILING)
    order = find_order(store.request_cancel(job.id), ran_s=0, max_runtime_s=10)
    assert order is not None
    assert order.target is JobState.CANCELLED
    assert (order.reason.code, order.reason.text) == ("cancelled", "cancelled by its user while PROFILING")


def test_the_limit_of_runtime_is_an_order_with_both_numbers(store: JobStore) -> None:
    order = find_order(submitted(store), ran_s=12.4, max_runtime_s=10)
    assert order is not None
    assert (order.target, order.reason.code) == (JobState.FAILED, "max_runtime")
    assert "ran for 12 s" in order.reason.text
    assert "max_runtime_s is 10 s" in order.reason.text


def test_a_job_that_others_ended_leaves_only_the_driver_to_end(store: JobStore) -> None:
    job = store.move(submitted(store).id, JobState.FAILED)
    order = find_order(job, ran_s=0, max_runtime_s=10)
    assert order is not None
    assert order.target is None


def watch(store: JobStore, job: JobRecord, *, forced: list[StopOrder], obey_s: float = 5.0) -> DriverWatch:
    return DriverWatch(job.id, store=store, max_runtime_s=60, force_end=forced.append, obey_s=obey_s)


def test_a_cancel_interrupts_the_main_thread(store: JobStore) -> None:
    job, forced = submitted(store), list[StopOrder]()
    watching = watch(store, job, forced=forced)
    with sigint_raises():
        watching.start()
        store.request_cancel(job.id)
        with pytest.raises(StopOrderedError):
            time.sleep(10)
        watching.stop()
    assert watching.interrupted().target is JobState.CANCELLED
    assert forced == []


def test_a_main_thread_that_does_not_obey_is_ended(store: JobStore) -> None:
    job, forced = submitted(store), list[StopOrder]()
    watching = watch(store, job, forced=forced, obey_s=0.1)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        watching.start()
        store.request_cancel(job.id)
        deadline = time.monotonic() + 5
        while not forced:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    assert forced[0].target is JobState.CANCELLED


def test_the_driver_says_that_it_lives(store: JobStore) -> None:
    job = submitted(store)
    watching = watch(store, job, forced=[])
    watching.start()
    deadline = time.monotonic() + 5
    while store.get_job(job.id).observed_at is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    watching.stop()


def test_an_interruption_from_elsewhere_is_a_failure(store: JobStore) -> None:
    order = watch(store, submitted(store), forced=[]).interrupted()
    assert (order.target, order.reason.code) == (JobState.FAILED, "driver_stopped")


def test_an_interruption_of_a_cancelled_job_is_its_cancel_although_the_watch_had_not_seen_it(store: JobStore) -> None:
    job = submitted(store)
    store.move(job.id, JobState.PROFILING)
    store.request_cancel(job.id)
    assert watch(store, job, forced=[]).interrupted().target is JobState.CANCELLED


def test_a_watch_that_stumbles_goes_on(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    job, forced, stumbles = submitted(store), list[StopOrder](), [KeyError("a fault of ours")]
    look = store.get_job

    def look_the_second_time(job_id: str) -> JobRecord:
        if stumbles:
            raise stumbles.pop()
        return look(job_id)

    store.request_cancel(job.id)
    monkeypatch.setattr(store, "get_job", look_the_second_time)
    watching = watch(store, job, forced=forced)
    with sigint_raises():
        watching.start()
        with pytest.raises(StopOrderedError):
            time.sleep(10)
        watching.stop()
    assert watching.interrupted().target is JobState.CANCELLED


def test_only_the_first_interruption_raises() -> None:
    with sigint_raises():
        with pytest.raises(StopOrderedError):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
