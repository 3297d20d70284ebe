"""What the ranks report ends up in the store, also across restarts and a database that is away."""

from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.failures import RunFailedError
from service.run_recorder import RunRecorder
from service.spec import JobState
from service.store import insistence, moves
from service.store.errors import StoreUnavailableError
from service.store.job_store import JobStore
from tests.kit.builders import job_spec
from workers.errors import TrainingDivergedError

PATH = (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING)


@pytest.fixture
def job_id(store: JobStore) -> str:
    job = store.create_job(job_spec())[0]
    for state in PATH:
        store.move(job.id, state)
    return job.id


def recorder(store: JobStore, job_id: str, **options: Any) -> RunRecorder:
    return RunRecorder(job_id, **{"open_store": lambda: store, "max_restarts": 1, **options})


def reports(step: int, *, epoch: int = 1, **values: float) -> list[dict[str, Any]]:
    shared = {"step": step, "total_steps": 10, "epoch": epoch, "values": {"loss": 0.5, "items_per_s": 10.0, **values}}
    return [{"rank": rank, "pid": 100 + rank, "node": "10.0.0.2", **shared} for rank in range(2)]


def test_the_first_report_means_running(store: JobStore, job_id: str) -> None:
    recorder(store, job_id).reported(reports(1))
    assert store.get_job(job_id).state is JobState.RUNNING


def test_every_rank_has_its_own_series(store: JobStore, job_id: str) -> None:
    recorder(store, job_id).reported(reports(1))
    points = store.metrics(job_id, names=("loss",)).points
    assert [(point.rank, point.step, point.value) for point in points] == [(0, 1, 0.5), (1, 1, 0.5)]


def test_progress_adds_up_throughput_and_keeps_the_last_accuracy(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    recording.reported(reports(1, val_accuracy=0.8))
    recording.reported(reports(2, epoch=2))
    progress = store.get_job(job_id).progress
    assert progress == {
        "step": 2, "total_steps": 10, "epoch": 2, "loss": 0.5, "items_per_s": 10.0, "val_accuracy": 0.8
    }  # fmt: skip


def test_a_failed_rank_means_restarting_with_a_reason(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    recording.reported(reports(1))
    recording.failed({1: RuntimeError("bad")})
    job = store.get_job(job_id)
    assert (job.state, job.restarts) == (JobState.RESTARTING, 1)
    assert job.reason is not None
    assert job.reason.text == "rank 1 (pid 101 on 10.0.0.2) failed: RuntimeError: bad"


def test_the_next_report_after_a_restart_means_running_again(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    recording.reported(reports(1))
    recording.failed({1: RuntimeError("bad")})
    recording.reported(reports(1))
    assert store.get_job(job_id).state is JobState.RUNNING
    assert len(store.metrics(job_id, names=("loss",), ranks=(0,)).points) == 1


def test_ranks_that_fail_before_their_first_report_did_run(store: JobStore, job_id: str) -> None:
    recorder(store, job_id).failed({0: RuntimeError("bad")})
    assert [move.target for move in store.transitions(job_id)][-2:] == [JobState.RUNNING, JobState.RESTARTING]


def test_a_rank_whose_others_go_on_is_told_of_counts_and_leaves_the_job_running(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    recording.reported(reports(3))
    recording.failed({1: RuntimeError("bad")}, others_go_on=True)
    job = store.get_job(job_id)
    assert (job.state, job.restarts) == (JobState.RUNNING, 0)
    told = [event.data for event in store.events_after(job_id) if event.type == "replica_lost"]
    text = "rank 1 (pid 101 on 10.0.0.2) failed: RuntimeError: bad; the others go on, and it comes back"
    assert told == [{"text": text, "code": "training_crashed"}]
    with pytest.raises(RunFailedError, match=r"restarted 1 of at most 1 times"):
        recording.failed({0: RuntimeError("bad")}, others_go_on=True)


def test_of_ranks_that_report_each_for_itself_the_furthest_says_where_the_run_is(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    of_one, of_other = reports(4)[1:], reports(6)[:1]
    recording.reported([*of_other, *of_one])
    assert store.get_job(job_id).progress["step"] == 6
    recording.reported(reports(8)[1:])
    assert store.get_job(job_id).progress["step"] == 8
    recording.failed({0: RuntimeError("bad")}, others_go_on=True)
    told = [event.data["text"] for event in store.events_after(job_id) if event.type == "replica_lost"]
    assert told[0].startswith("rank 0 (pid 100 on 10.0.0.2) failed"), "where a rank is was forgotten"


def test_a_failure_beyond_the_last_restart_ends_the_run(store: JobStore, job_id: str) -> None:
    recording = recorder(store, job_id)
    recording.failed({0: RuntimeError("bad")})
    with pytest.raises(RunFailedError, match=r"restarted 1 of at most 1 times") as caught:
        recording.failed({0: RuntimeError("bad")})
    assert caught.value.code == "training_crashed"
    assert store.get_job(job_id).restarts == 1


def test_an_error_that_would_come_again_is_not_restarted(store: JobStore, job_id: str) -> None:
    with pytest.raises(RunFailedError) as caught:
        recorder(store, job_id).failed({0: TrainingDivergedError("loss is NaN in step 3")})
    assert caught.value.code == "training_diverged"
    assert store.get_job(job_id).restarts == 0


def test_a_fault_of_the_code_is_not_restarted(store: JobStore, job_id: str) -> None:
    with pytest.raises(RunFailedError, match=r"rank 0 failed: IndexError: 9 of 4$") as caught:
        recorder(store, job_id).failed({0: IndexError("9 of 4")})
    assert caught.value.code == "training_crashed"
    assert store.get_job(job_id).restarts == 0


def test_a_job_is_said_to_run_before_its_progress_is_told(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, tell = [], store.set_progress

    def tell_and_look(*arguments: Any) -> None:
        states.append(store.get_job(job_id).state)
        tell(*arguments)

    monkeypatch.setattr(store, "set_progress", tell_and_look)
    recorder(store, job_id).reported(reports(1))
    assert states == [JobState.RUNNING]


def test_the_cluster_is_asked_who_died_only_if_nobody_among_the_failed_did(store: JobStore, job_id: str) -> None:
    asked = []

    def find_deaths(places: Any) -> dict[int, str]:
        asked.append(sorted(places))
        return {0: "its process ended"}

    recording = recorder(store, job_id, max_restarts=2, find_deaths=find_deaths)
    recording.reported(reports(1))
    recording.failed({1: RuntimeError("bad")})
    assert asked == []
    recording.failed({1: RuntimeError("Connection closed by peer")})
    assert asked == [[0, 1]]
    reason = store.get_job(job_id).reason
    assert reason is not None
    assert reason.code == "worker_died"


def test_what_a_database_could_not_take_is_written_with_the_next_report(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorder(store, job_id)
    with monkeypatch.context() as broken:
        broken.setattr(store, "add_metrics", _away)
        recording.reported(reports(1))
    recording.reported(reports(2))
    assert [point.step for point in store.metrics(job_id, names=("loss",), ranks=(0,)).points] == [1, 2]


def test_a_restart_that_a_database_could_not_take_is_written_with_the_next_report(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorder(store, job_id, max_restarts=3)
    recording.reported(reports(1))
    with monkeypatch.context() as broken:
        broken.setattr(store, "restart", _away)
        recording.failed({1: RuntimeError("first")})
        recording.failed({1: RuntimeError("second")})
    recording.reported(reports(1))
    history = [(move.target, move.reason.text[-5:] if move.reason else "") for move in store.transitions(job_id)]
    assert history[-5:] == [
        ("RUNNING", ""), ("RESTARTING", "first"), ("RUNNING", ""), ("RESTARTING", "econd"), ("RUNNING", "")
    ]  # fmt: skip
    assert store.get_job(job_id).restarts == 2


def test_a_restart_is_moved_and_counted_together_or_not_at_all(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = recorder(store, job_id)
    recording.reported(reports(1))
    with monkeypatch.context() as broken:
        broken.setattr(moves, "append_event", _away)  # the last that a move writes
        recording.failed({1: RuntimeError("bad")})
    assert (store.get_job(job_id).state, store.get_job(job_id).restarts) == (JobState.RUNNING, 0)
    recording.reported(reports(1))
    assert [move.target for move in store.transitions(job_id)][-2:] == [JobState.RESTARTING, JobState.RUNNING]
    assert store.get_job(job_id).restarts == 1


def test_the_last_report_is_written_again_until_the_database_takes_it(
    store: JobStore, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insistence, "_PAUSE_S", 0)
    refusals, take = [_away, _away], store.add_metrics

    def take_the_third_time(*arguments: Any) -> None:
        (refusals.pop() if refusals else take)(*arguments)

    monkeypatch.setattr(store, "add_metrics", take_the_third_time)
    recorder(store, job_id).reported(reports(10, done=1.0))
    assert store.get_job(job_id).state is JobState.RUNNING
    assert store.get_job(job_id).progress["step"] == 10


def test_a_database_that_cannot_be_opened_at_the_first_report_is_opened_at_the_next(
    store: JobStore, job_id: str
) -> None:
    refusals = [StoreUnavailableError("cannot open the database")]

    def open_the_second_time() -> JobStore:
        if refusals:
            raise refusals.pop()
        return store

    recording = recorder(store, job_id, open_store=open_the_second_time)
    recording.reported(reports(1))
    assert store.get_job(job_id).state is JobState.SCHEDULING
    recording.reported(reports(2))
    assert [point.step for point in store.metrics(job_id, names=("loss",), ranks=(0,)).points] == [1, 2]


def test_a_report_after_the_job_was_cancelled_changes_nothing(store: JobStore, job_id: str) -> None:
    store.move(job_id, JobState.CANCELLED)
    recording = recorder(store, job_id)
    recording.reported(reports(1))
    recording.failed({0: RuntimeError("bad")})
    assert store.get_job(job_id).state is JobState.CANCELLED


def _away(*arguments: Any, **named: Any) -> None:
    raise OperationalError("insert", {}, Exception("database is locked"))
