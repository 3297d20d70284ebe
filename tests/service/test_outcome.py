"""The result of a run, out of what its ranks reported and left behind."""

from pathlib import Path
from typing import Any

import pytest

from service.outcome import build_result
from service.settings import Settings
from service.store.job_store import JobStore
from tests.kit.builders import job_spec, metric, two_rank_plan

LAST = {"test_accuracy": 0.8, "val_accuracy": 0.9, "best_epoch": 12.0}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def result(
    store: JobStore, settings: Settings, *, files: tuple[str, ...] = (), **values: list[float]
) -> dict[str, Any]:
    """The result of a run whose ranks both reported ``values[name]`` at the steps 1, 2, …"""
    job_id = store.create_job(job_spec())[0].id
    for name, series in values.items():
        points = [
            metric(step, name=name, value=value, rank=rank) for rank in (0, 1) for step, value in enumerate(series, 1)
        ]
        store.add_metrics(job_id, points)
    for file in files:
        path = Path(settings.job_uri(job_id)) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return build_result(job_id, last=LAST, plan=two_rank_plan(), store=store, settings=settings)


def test_the_first_report_does_not_count_for_the_step_time(store: JobStore, settings: Settings) -> None:
    assert result(store, settings, step_time_s=[9.0, 0.1, 0.2, 0.3])["step_time_s"] == pytest.approx(0.2)


def test_every_rank_reports_the_throughput_of_all_so_it_is_not_summed(store: JobStore, settings: Settings) -> None:
    assert result(store, settings, items_per_s=[1.0, 10.0, 12.0, 11.0])["items_per_s"] == pytest.approx(11.0)


def test_a_run_of_one_report_is_judged_by_it(store: JobStore, settings: Settings) -> None:
    assert result(store, settings, items_per_s=[5.0])["items_per_s"] == pytest.approx(5.0)


def test_a_run_that_measured_nothing_says_so(store: JobStore, settings: Settings) -> None:
    found = result(store, settings)
    assert (found["step_time_s"], found["items_per_s"], found["checkpoint"]) == (None, None, None)


def test_the_checkpoint_is_the_last_committed_one(store: JobStore, settings: Settings) -> None:
    committed = [f"checkpoints/step-{step:08d}/manifest.json" for step in (5, 10)]
    found = result(store, settings, files=(*committed, "checkpoints/step-00000015/rank-00000.pt"))
    assert found["checkpoint"].endswith("step-00000010")


def test_the_files_are_the_artifacts_and_not_the_logs(store: JobStore, settings: Settings) -> None:
    files = ("export/config.json", "export/.model.safetensors.x1", "logs/driver.log")
    found = result(store, settings, files=(*files, "checkpoints/step-00000015/rank-00000.pt"))
    assert found["files"] == ["export/config.json"]
    assert found["best_epoch"] == 12
