"""What is decided about submitted jobs. No store, no cluster, no clock: only values."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from service.cluster import RunState, RunStatus
from service.policies import LEAVE_ALONE, Patience, Verdict, judge, needs_status, retry_delay_s
from service.spec import JobSpec, JobState
from service.store.records import JobRecord
from tests.kit.builders import job_document, job_spec

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PATIENCE = Patience(cancel_grace_s=6, driver_start_s=60, silence_s=3)
ACTIVE = (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING, JobState.RUNNING, JobState.RESTARTING)
OVER = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.MISSING)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(state: JobState, **fields: Any) -> JobRecord:
    times = {"created_at": ago(100), "updated_at": ago(1), "submitted_at": ago(10)}
    return JobRecord(**{"id": "j", "spec": job_spec(), "state": state, "submission_id": "j", **times, **fields})


def limited(max_runtime_s: float) -> JobSpec:
    return JobSpec.model_validate(job_document(limits={"max_runtime_s": max_runtime_s}))


def run(state: RunState, message: str = "") -> RunStatus:
    return RunStatus(state=state, message=message)


def decide(record: JobRecord, status: RunStatus | None, *, reachable_for_s: float = 1000) -> Verdict:
    return judge(record, status, now=NOW, patience=PATIENCE, reachable_since=ago(reachable_for_s))


@pytest.mark.parametrize("state", [JobState.PENDING, *ACTIVE])
@pytest.mark.parametrize("silent_s", [0, 10_000])
def test_a_cluster_that_does_not_answer_fails_no_job(state: JobState, silent_s: float) -> None:
    assert decide(job(state, observed_at=ago(silent_s), submitted_at=ago(10_000)), None) == LEAVE_ALONE


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("status", OVER)
def test_a_driver_that_is_gone_and_silent_is_lost_with_the_clusters_words(state: JobState, status: RunState) -> None:
    verdict = decide(job(state, observed_at=ago(4)), run(status, "killed by signal 9"))
    assert verdict.target is JobState.FAILED
    assert verdict.reason is not None
    assert verdict.reason.code == "driver_lost"
    assert str(status) in verdict.reason.text
    assert "killed by signal 9" in verdict.reason.text


@pytest.mark.parametrize("state", ACTIVE)
@pytest.mark.parametrize("status", OVER)
def test_a_driver_that_spoke_a_moment_ago_is_alive_whatever_the_cluster_says(state: JobState, status: RunState) -> None:
    assert decide(job(state, observed_at=ago(1)), run(status)) == LEAVE_ALONE


@pytest.mark.parametrize("state", ACTIVE)
def test_a_silent_driver_that_runs_is_left_alone(state: JobState) -> None:
    assert decide(job(state, observed_at=ago(600)), run(RunState.RUNNING)) == LEAVE_ALONE


@pytest.mark.parametrize("state", ACTIVE)
def test_a_driver_that_hangs_beyond_the_limit_of_its_job_is_stopped_and_the_job_fails_for_it(state: JobState) -> None:
    times = {"started_at": ago(50), "observed_at": ago(30)}
    hung = job(state, spec=limited(40), **times)
    assert decide(hung, run(RunState.RUNNING)) == Verdict(stop=True)
    verdict = decide(hung, run(RunState.STOPPED))
    assert verdict.target is JobState.FAILED
    assert verdict.reason is not None
    assert verdict.reason.code == "max_runtime"
    assert "max_runtime_s of 40 s" in verdict.reason.text
    assert decide(job(state, spec=limited(45), **times), run(RunState.RUNNING)) == LEAVE_ALONE  # and its grace


@pytest.mark.parametrize("status", [RunState.RUNNING, *OVER])
@pytest.mark.parametrize("max_runtime_s", [5e-324, 315_360_000.0])
def test_every_limit_that_a_spec_may_have_can_be_judged(status: RunState, max_runtime_s: float) -> None:
    record = job(JobState.RUNNING, spec=limited(max_runtime_s), started_at=ago(50), observed_at=ago(30))
    verdict = decide(record, run(status))
    assert verdict.stop or verdict.target is JobState.FAILED or max_runtime_s > 1


def test_a_driver_that_speaks_keeps_the_limit_of_its_job_itself() -> None:
    record = job(JobState.RUNNING, spec=limited(40), started_at=ago(50), observed_at=ago(0))
    assert decide(record, run(RunState.RUNNING)) == LEAVE_ALONE


@pytest.mark.parametrize("state", ACTIVE)
def test_a_driver_of_which_the_cluster_knows_nothing_is_not_called_lost(state: JobState) -> None:
    assert decide(job(state, observed_at=ago(600)), run(RunState.UNKNOWN)) == LEAVE_ALONE


def test_a_pending_cancelled_job_ends_even_while_the_cluster_is_away() -> None:
    verdict = decide(job(JobState.PENDING, cancel_requested_at=ago(0)), None)
    assert (verdict.target, verdict.stop) == (JobState.CANCELLED, True)


@pytest.mark.parametrize("state", ACTIVE)
def test_a_driver_has_its_grace_after_a_cancel_and_is_stopped_then(state: JobState) -> None:
    status = run(RunState.RUNNING)
    assert decide(job(state, observed_at=ago(0), cancel_requested_at=ago(5)), status) == LEAVE_ALONE
    assert decide(job(state, observed_at=ago(0), cancel_requested_at=ago(7)), status) == Verdict(stop=True)


@pytest.mark.parametrize("status", OVER)
def test_a_cancelled_job_whose_driver_is_gone_is_cancelled_not_failed(status: RunState) -> None:
    verdict = decide(job(JobState.RUNNING, observed_at=ago(4), cancel_requested_at=ago(1)), run(status))
    assert verdict.target is JobState.CANCELLED
    assert verdict.reason is not None
    assert verdict.reason.code == "cancelled"


def test_a_cancelled_job_whose_driver_had_to_be_stopped_ends_without_waiting_for_silence() -> None:
    record = job(JobState.RUNNING, observed_at=ago(0), cancel_requested_at=ago(7))
    assert decide(record, run(RunState.STOPPED)).target is JobState.CANCELLED


def test_a_claimed_job_that_the_cluster_does_not_know_is_submitted_again() -> None:
    assert decide(job(JobState.PENDING), run(RunState.MISSING)) == Verdict(submit=True)


@pytest.mark.parametrize("status", [RunState.FAILED, RunState.STOPPED, RunState.SUCCEEDED])
def test_a_driver_that_ended_before_it_began_fails_its_job_with_the_cause(status: RunState) -> None:
    verdict = decide(job(JobState.PENDING), run(status, "No module named graphmill"))
    assert verdict.target is JobState.FAILED
    assert verdict.reason is not None
    assert verdict.reason.code == "driver_not_started"
    assert "No module named graphmill" in verdict.reason.text


@pytest.mark.parametrize("status", [RunState.PENDING, RunState.RUNNING, RunState.MISSING, RunState.UNKNOWN])
def test_a_driver_that_never_reports_fails_its_job_after_its_time(status: RunState) -> None:
    record = job(JobState.PENDING, submitted_at=ago(61))
    verdict = decide(record, run(status, "installing"))
    assert (verdict.target, verdict.stop) == (JobState.FAILED, True)
    assert verdict.reason is not None
    assert verdict.reason.code == "driver_start_timeout"
    assert "60 s" in verdict.reason.text


def test_the_time_to_start_counts_only_while_the_cluster_can_be_asked() -> None:
    verdict = decide(job(JobState.PENDING, submitted_at=ago(10_000)), run(RunState.PENDING), reachable_for_s=5)
    assert verdict.target is None


def test_a_driver_on_its_way_is_a_reason_to_wait() -> None:
    verdict = decide(job(JobState.PENDING), run(RunState.PENDING))
    assert verdict.waiting is not None
    assert verdict.waiting.code == "driver_starting"


def test_the_cluster_is_not_asked_about_drivers_that_speak() -> None:
    def asks(record: JobRecord) -> bool:
        return needs_status(record, now=NOW, patience=PATIENCE)

    assert not asks(job(JobState.RUNNING, observed_at=ago(1)))
    assert asks(job(JobState.RUNNING, observed_at=ago(4)))
    assert asks(job(JobState.RUNNING, observed_at=None))
    assert asks(job(JobState.RUNNING, observed_at=ago(0), cancel_requested_at=ago(7)))
    assert asks(job(JobState.PENDING))


def test_retries_slow_down_to_a_limit() -> None:
    delays = [retry_delay_s(failures) for failures in range(12)]
    assert delays[:4] == [0.0, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert max(delays) == 10.0
    assert retry_delay_s(100_000) == 10.0
