"""The driver process, as far as it goes without a cluster."""

import sys
from pathlib import Path

import pytest

from service import driver_main
from service.driver_watch import StopOrder
from service.settings import Settings
from service.spec import JobState
from service.store.engine import open_store
from service.store.job_store import JobStore
from service.store.records import Reason
from tests.kit.builders import job_spec
from workers.versions import installed_version


class Exited(BaseException):
    """In place of the end of this process."""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = Settings(home=tmp_path / "home")
    monkeypatch.setattr(driver_main, "load_settings", lambda: made)
    return made


@pytest.fixture
def job(settings: Settings) -> tuple[JobStore, str]:
    """The database of the driver, with one job."""
    store = open_store(settings.database_url)
    return store, store.create_job(job_spec())[0].id


def test_a_driver_of_another_version_than_the_service_ends_its_job(job: tuple[JobStore, str]) -> None:
    store, job_id = job
    assert driver_main.main([job_id, "0.0.1"]) == 1
    record = store.get_job(job_id)
    assert record.state is JobState.FAILED
    assert record.reason is not None
    assert record.reason.code == "version_mismatch"
    assert "the service runs graphmill 0.0.1, node" in record.reason.text


@pytest.mark.parametrize(
    ("target", "ended", "code"),
    [
        (JobState.CANCELLED, JobState.CANCELLED, 0),
        (JobState.FAILED, JobState.FAILED, 1),
        (None, JobState.PENDING, 1),  # it was ended by another hand, only the process is left
    ],
)
def test_a_driver_whose_main_thread_is_stuck_ends_its_job_and_itself(
    job: tuple[JobStore, str], monkeypatch: pytest.MonkeyPatch, target: JobState | None, ended: JobState, code: int
) -> None:
    store, job_id = job
    left: list[int] = []

    def leave(code: int) -> None:
        left.append(code)
        raise Exited

    def stuck(*_: object, force_end: object, **__: object) -> None:
        assert callable(force_end)
        force_end(StopOrder(target=target, reason=Reason(code="told", text="to stop")))

    monkeypatch.setattr("service.driver.drive", stuck)
    monkeypatch.setitem(sys.modules, "service.ray_engine", type(sys)("service.ray_engine"))
    monkeypatch.setattr(sys.modules["service.ray_engine"], "RayEngine", lambda **_: None, raising=False)
    monkeypatch.setattr(driver_main.os, "_exit", leave)
    with pytest.raises(Exited):
        driver_main.main([job_id, installed_version()])
    assert left == [code]
    assert store.get_job(job_id).state is ended


def test_a_forced_end_leaves_an_ended_job_as_it_is(job: tuple[JobStore, str]) -> None:
    store, job_id = job
    store.request_cancel(job_id)
    driver_main._end_in_store(store, job_id, StopOrder(target=JobState.FAILED, reason=Reason(code="late", text="late")))
    assert store.get_job(job_id).state is JobState.CANCELLED
