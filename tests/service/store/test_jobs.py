"""Birth and life of a job in the store."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.spec import JobState
from service.states import IllegalMoveError
from service.store.errors import IdempotencyConflictError, JobEndedError, JobNotFoundError
from service.store.job_store import JobStore
from service.store.records import Reason, Waiting
from tests.kit.builders import job_spec

LIFE = (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING, JobState.RUNNING, JobState.FINISHED)


def at_once(action: Callable[[], Any], *, times: int) -> list[Any]:
    """Run an action in threads that start together; errors are results too."""
    results: list[Any] = []
    gate = threading.Barrier(times)

    def run() -> None:
        gate.wait()
        try:
            results.append(action())
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_new_job_has_a_state_a_reason_to_wait_and_a_position_at_once(store: JobStore) -> None:
    record, created = store.create_job(job_spec())
    assert created
    assert record.state is JobState.PENDING
    assert record.waiting is not None
    assert record.waiting.code == "accepted"
    assert record.waiting.position == 1
    assert [event.data["state"] for event in store.events_after(record.id)] == ["PENDING"]


def test_ids_sort_by_the_time_of_their_making(store: JobStore) -> None:
    first = store.create_job(job_spec())[0]
    while True:
        second = store.create_job(job_spec())[0]
        if second.created_at - first.created_at > timedelta(milliseconds=2):
            break
    assert first.id < second.id


def test_times_come_back_aware_and_in_utc(store: JobStore) -> None:
    record = store.get_job(store.create_job(job_spec())[0].id)
    assert record.created_at.tzinfo is UTC
    assert abs(record.created_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_key_used_twice_makes_one_job(store: JobStore) -> None:
    first, created = store.create_job(job_spec(), idempotency_key="k")
    second, again = store.create_job(job_spec(), idempotency_key="k")
    assert (created, again) == (True, False)
    assert first.id == second.id


def test_a_key_used_by_many_at_once_makes_one_job(store: JobStore) -> None:
    results = at_once(lambda: store.create_job(job_spec(), idempotency_key="k"), times=12)
    assert len({record.id for record, _ in results}) == 1
    assert sum(created for _, created in results) == 1
    assert len(store.list_jobs().items) == 1


def test_a_key_for_another_spec_is_refused(store: JobStore) -> None:
    store.create_job(job_spec(name="one"), idempotency_key="k")
    with pytest.raises(IdempotencyConflictError, match="new key"):
        store.create_job(job_spec(name="two"), idempotency_key="k")


def test_jobs_without_a_key_are_all_new(store: JobStore) -> None:
    assert store.create_job(job_spec())[0].id != store.create_job(job_spec())[0].id


def test_a_move_is_stored_with_its_reason_and_an_event(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    reason = Reason(code="driver_lost", text="the driver is gone")
    store.move(job_id, JobState.FAILED, reason=reason)
    record, transition, event = store.get_job(job_id), store.transitions(job_id)[-1], store.events_after(job_id)[-1]
    assert record.reason == transition.reason == reason
    assert (transition.source, transition.target) == (JobState.PENDING, JobState.FAILED)
    assert event.data == {"state": "FAILED", "source": "PENDING", "reason": reason.model_dump()}
    assert record.finished_at == transition.at == event.at


def test_a_job_walks_through_its_life_in_order(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    for state in LIFE:
        store.move(job_id, state)
    assert [move.target for move in store.transitions(job_id)] == [JobState.PENDING, *LIFE]
    record = store.get_job(job_id)
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.waiting is None


def test_a_move_that_the_table_forbids_changes_nothing(store: JobStore) -> None:
    before = store.create_job(job_spec())[0]
    with pytest.raises(IllegalMoveError, match="cannot move"):
        store.move(before.id, JobState.RUNNING)
    assert store.get_job(before.id) == before
    assert len(store.transitions(before.id)) == 1


@pytest.mark.parametrize("end", [JobState.FINISHED, JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize("target", list(JobState))
def test_an_ended_job_never_moves_again(store: JobStore, end: JobState, target: JobState) -> None:
    job_id = store.create_job(job_spec())[0].id
    for state in LIFE[:-1]:
        store.move(job_id, state)
    store.move(job_id, end)
    with pytest.raises(IllegalMoveError):
        store.move(job_id, target)
    assert store.get_job(job_id).state is end


def test_of_many_who_end_a_job_at_once_one_wins(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    results = at_once(lambda: store.move(job_id, JobState.FAILED), times=8)
    assert sum(isinstance(result, IllegalMoveError) for result in results) == 7
    assert len(store.transitions(job_id)) == 2


def test_a_move_from_a_state_that_has_passed_is_refused(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.move(job_id, JobState.PROFILING)
    with pytest.raises(IllegalMoveError, match="it is PROFILING now"):
        store.move(job_id, JobState.CANCELLED, only_from=JobState.PENDING)


def test_a_job_that_nobody_submitted_is_cancelled_at_once(store: JobStore) -> None:
    record = store.request_cancel(store.create_job(job_spec())[0].id)
    assert record.state is JobState.CANCELLED
    assert record.reason is not None
    assert record.reason.code == "cancelled"
    assert record.cancel_requested_at is not None


def test_a_submitted_job_is_asked_to_end_once(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.set_submission(job_id, job_id)
    first, second = store.request_cancel(job_id), store.request_cancel(job_id)
    assert first.state is second.state is JobState.PENDING
    assert first.cancel_requested_at == second.cancel_requested_at is not None
    assert [event.type for event in store.events_after(job_id)] == ["state", "cancel_requested"]


def test_cancelling_a_cancelled_job_changes_nothing(store: JobStore) -> None:
    first = store.request_cancel(store.create_job(job_spec())[0].id)
    assert store.request_cancel(first.id) == first


@pytest.mark.parametrize("end", [JobState.FINISHED, JobState.FAILED])
def test_a_job_that_ended_by_itself_cannot_be_cancelled(store: JobStore, end: JobState) -> None:
    job_id = store.create_job(job_spec())[0].id
    for state in LIFE[:-1]:
        store.move(job_id, state)
    store.move(job_id, end)
    with pytest.raises(JobEndedError, match=str(end)) as caught:
        store.request_cancel(job_id)
    assert caught.value.details["state"] is end


def test_a_cancel_survives_that_the_driver_starts_meanwhile(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.set_submission(job_id, job_id)
    store.request_cancel(job_id)
    assert store.move(job_id, JobState.PROFILING).cancel_requested_at is not None


def test_only_a_pending_job_can_be_claimed(store: JobStore) -> None:
    job_id = store.request_cancel(store.create_job(job_spec())[0].id).id
    with pytest.raises(IllegalMoveError, match="only a PENDING job"):
        store.set_submission(job_id, job_id)


def test_a_waiting_reason_ends_with_the_waiting(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.set_waiting(
        job_id, Waiting(code="resources_busy", reason="asked 2 CPUs; 0 of 4 are free", asked={"cpus": 2.0})
    )
    assert store.get_job(job_id).waiting is not None
    store.move(job_id, JobState.PROFILING)
    store.set_waiting(job_id, Waiting(code="late", reason="too late"))
    assert store.get_job(job_id).waiting is None


def test_heartbeat_progress_result_and_restarts_are_kept(store: JobStore) -> None:
    job_id = store.create_job(job_spec())[0].id
    store.observe(job_id)
    store.set_progress(job_id, {"step": 3, "loss": float("nan")})
    store.set_result(job_id, {"test_accuracy": 0.8})
    for state in (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING):
        store.move(job_id, state)
    died = Reason(code="worker_died", text="rank 1 died")
    assert [store.restart(job_id, died), store.restart(job_id, died)] == [1, 2]
    record = store.get_job(job_id)
    assert record.observed_at is not None
    assert record.progress == {"step": 3, "loss": None}  # JSON has no word for NaN
    assert record.result == {"test_accuracy": 0.8}
    assert record.restarts == 2


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.get_job("job-none"),
        lambda store: store.move("job-none", JobState.FAILED),
        lambda store: store.request_cancel("job-none"),
        lambda store: store.events_after("job-none"),
        lambda store: store.metrics("job-none"),
        lambda store: store.transitions("job-none"),
        lambda store: store.get_plan("job-none"),
        lambda store: store.observe("job-none"),
    ],
)
def test_an_unknown_job_is_named(store: JobStore, action: Callable[[JobStore], Any]) -> None:
    with pytest.raises(JobNotFoundError, match="job-none"):
        action(store)


def test_a_lease_has_one_holder_until_it_runs_out(store: JobStore) -> None:
    assert store.take_lease("l", holder="a", seconds=60)
    assert store.take_lease("l", holder="a", seconds=0)
    assert store.take_lease("l", holder="b", seconds=60)
    assert not store.take_lease("l", holder="a", seconds=60)
    store.drop_lease("l", holder="a")
    assert not store.take_lease("l", holder="a", seconds=60)
    store.drop_lease("l", holder="b")
    assert store.take_lease("l", holder="a", seconds=60)


def test_of_many_who_take_a_free_lease_one_gets_it(store: JobStore) -> None:
    names = iter(range(100))
    results = at_once(lambda: store.take_lease("l", holder=str(next(names)), seconds=60), times=8)
    assert sorted(results) == [False] * 7 + [True]
