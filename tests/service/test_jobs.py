"""The use cases around jobs."""

import math
from pathlib import Path

import pytest

from service.jobs import Jobs, NotPlannedError, measure
from service.settings import Settings
from service.spec import JobState
from service.store.errors import QueueFullError
from service.store.job_store import JobStore
from service.validation import SpecInvalidError
from tests.kit.builders import job_document, metric, two_rank_plan


@pytest.fixture
def woken() -> list[bool]:
    return []


@pytest.fixture
def jobs(store: JobStore, tmp_path: Path, woken: list[bool]) -> Jobs:
    settings = Settings(home=tmp_path, max_pending_jobs=2)
    return Jobs(store, settings, wake=lambda: woken.append(True))


def test_a_job_is_stored_before_the_answer_and_the_dispatcher_hears_of_it(jobs: Jobs, woken: list[bool]) -> None:
    record, created = jobs.submit(job_document())
    assert created
    assert jobs.store.get_job(record.id) == record
    assert woken


def test_a_full_queue_takes_no_more(jobs: Jobs) -> None:
    for key in ("a", "b"):
        jobs.submit(job_document(), idempotency_key=key)
    with pytest.raises(QueueFullError, match="the limit is 2"):
        jobs.submit(job_document())
    assert jobs.submit(job_document(), idempotency_key="a")[1] is False  # it has its place already


def test_a_job_whose_driver_is_silent_is_called_stale(store: JobStore, tmp_path: Path) -> None:
    jobs = Jobs(store, Settings(home=tmp_path, stale_after_s=1e-9), wake=lambda: None)
    record, _ = jobs.submit(job_document())
    assert not jobs.is_stale(record)  # nobody speaks for a pending job
    store.observe(record.id)
    assert jobs.is_stale(store.move(record.id, JobState.PROFILING))
    assert not jobs.is_stale(store.move(record.id, JobState.FAILED))


def test_a_job_without_a_plan_says_in_which_state_it_is(jobs: Jobs) -> None:
    record, _ = jobs.submit(job_document())
    with pytest.raises(NotPlannedError, match="PENDING"):
        jobs.plan(record.id)


def test_a_plan_comes_with_what_was_measured(jobs: Jobs) -> None:
    record, _ = jobs.submit(job_document())
    jobs.store.save_plan(record.id, two_rank_plan())
    assert jobs.plan(record.id)[1] == measure([])
    jobs.store.add_metrics(record.id, [metric(1, name="step_time_s", value=0.5)])
    assert jobs.plan(record.id)[1].step_time_s == 0.5


def test_measuring_takes_the_slowest_rank_and_leaves_the_warm_up_out() -> None:
    times = {1: (9.0, 9.0), 2: (1.0, 2.0), 3: (3.0, 1.0), 4: (4.0, 4.0)}
    points = [
        metric(step, name="step_time_s", rank=rank, value=value)
        for step, values in times.items()
        for rank, value in enumerate(values)
    ]
    points += [
        metric(1, name="peak_memory_bytes", rank=1, value=10),
        metric(2, name="peak_memory_bytes", rank=1, value=7),
    ]
    points += [metric(9, name="step_time_s", value=math.nan)]
    found = measure(points)
    assert found.step_time_s == 3.0
    assert found.memory_bytes == {1: 10}


def test_a_model_is_used_only_of_a_job_that_has_finished_with_the_same_model(jobs: Jobs) -> None:
    source, _ = jobs.submit(job_document())
    use = {"task": "predict", "from_job": source.id}
    with pytest.raises(SpecInvalidError, match=r"/from_job: job .* is PENDING"):
        jobs.submit(job_document(**use))
    with pytest.raises(SpecInvalidError, match="/from_job: no job nothing"):
        jobs.submit(job_document(task="evaluate", from_job="nothing"))
    for state in (JobState.PROFILING, JobState.PLANNING, JobState.SCHEDULING, JobState.RUNNING, JobState.FINISHED):
        jobs.store.move(source.id, state)
    with pytest.raises(SpecInvalidError, match=r"/model: job .* has another model"):
        jobs.submit(job_document(**use, model={"name": "graphormer", "hidden_size": 32, "num_heads": 4}))
    assert jobs.submit(job_document(**use))[1]


@pytest.mark.parametrize("use", [{"task": "predict"}, {"from_job": "some"}])
def test_using_a_model_and_naming_its_job_belong_together(jobs: Jobs, use: dict[str, str]) -> None:
    with pytest.raises(SpecInvalidError, match="from_job"):
        jobs.submit(job_document(**use))
