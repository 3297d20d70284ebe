"""One stored row of another version harms that job alone."""

from pathlib import Path

import pytest
from sqlalchemy import text

from service.dispatcher import Dispatcher
from service.jobs import Jobs, PlanUnreadableError
from service.settings import Settings
from service.spec import JobState
from service.store.errors import IdempotencyConflictError
from service.store.job_store import JobStore
from service.store.rows import find_row
from service.store.transactions import writing
from tests.kit.builders import age_spec, job_spec
from tests.kit.fake_cluster import FakeCluster
from tests.service.test_driver import run

OLD = (
    {"old_field": 1},
    {"limits": {"max_runtime_s": 1e300}},
    {"training": {"optimiser": "x", "epochs": 3}},
    {"kind": "x"},
)


@pytest.mark.parametrize("fields", OLD)
def test_an_old_job_is_listed_and_failed_with_its_cause_and_the_others_go_on(store: JobStore, fields: dict) -> None:  # type: ignore[type-arg]
    old, good = (store.create_job(job_spec())[0].id for _ in range(2))
    age_spec(store, old, **fields)
    cluster = FakeCluster()
    Dispatcher(store, cluster, holder="test").step()
    assert cluster.submitted == [good]
    job = next(job for job in store.list_jobs().items if job.id == old)
    assert job.state is JobState.FAILED
    assert job.reason is not None
    assert job.reason.code == "spec_unreadable"
    assert next(iter(fields)) in job.reason.text


def test_what_can_be_read_of_an_old_spec_is_shown(store: JobStore) -> None:
    old = store.create_job(job_spec(name="mine", workers=3))[0].id
    age_spec(store, old, old_field=1, training={"epochs": 7, "optimiser": "x"})
    spec = store.get_job(old).spec
    assert (spec.name, spec.resources.num_workers, spec.training.epochs) == ("mine", 3, 7)


def test_a_driver_does_not_take_up_an_old_job(store: JobStore, tmp_path: Path) -> None:
    job = store.create_job(job_spec())[0]
    store.set_submission(job.id, job.id)
    age_spec(store, job.id, old_field=1)
    assert run(store, Settings(home=tmp_path), job).calls == []
    reason = store.get_job(job.id).reason
    assert reason is not None
    assert reason.code == "spec_unreadable"


def test_the_key_of_an_old_job_is_taken(store: JobStore) -> None:
    job = store.create_job(job_spec(), idempotency_key="k")[0]
    age_spec(store, job.id, old_field=1)
    with pytest.raises(IdempotencyConflictError):
        store.create_job(job_spec(), idempotency_key="k")


def test_a_profile_of_an_old_version_is_not_known(store: JobStore) -> None:
    with store._engine.begin() as connection:
        row = (
            "INSERT INTO profiles (fingerprint, profile, saved_at) VALUES ('f', '{\"old\": 1}', '2026-01-01 00:00:00')"
        )
        connection.execute(text(row))
    assert store.find_profile("f") is None


@pytest.mark.parametrize("plan", ['{"kind": "old"}', '{"kind": "mqgnn", "world_size": 2, "old_field": 1}'])
def test_a_plan_of_another_version_is_refused_by_name_and_its_job_is_shown(store: JobStore, plan: str) -> None:
    job_id = store.create_job(job_spec())[0].id
    with writing(store._engine) as session:
        find_row(session, job_id).plan = plan
    with pytest.raises(PlanUnreadableError, match=f"the plan of job {job_id}: this is no plan"):
        Jobs(store, Settings(), wake=lambda: None).plan(job_id)
    assert store.list_jobs().items[0].id == job_id
