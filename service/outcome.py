"""The result of a finished run: what it reached, what it took, and how both compare with what the plan promised."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.plan import MegaGraphPlan, MQGNNPlan
from service.jobs import measure
from service.settings import Settings
from service.store.job_store import JobStore
from service.store.records import MetricPoint

_MEASURED = ("step_time_s", "peak_memory_bytes", "items_per_s")
_ARTIFACTS = ("export", "checkpoints")


def build_result(
    job_id: str, *, last: Mapping[str, float], plan: MegaGraphPlan | MQGNNPlan, store: JobStore, settings: Settings
) -> dict[str, Any]:
    """Everything that the doors show of a finished job. ``last``: values of rank 0's last report."""
    points = list(_points(store, job_id))
    measured = measure(points)
    job_dir = settings.job_dir(job_id)
    predicted = plan.predicted
    return {
        "test_accuracy": last.get("test_accuracy"),
        "val_accuracy": last.get("val_accuracy"),
        "best_epoch": _whole(last.get("best_epoch")),
        "items_per_s": _throughput(points),
        "step_time_s": measured.step_time_s,
        "predicted_step_time_s": None if predicted is None else predicted.step_time_s,
        "peak_memory_bytes": {str(rank): size for rank, size in measured.memory_bytes.items()},
        "predicted_memory_bytes": None if predicted is None else list(predicted.memory_bytes),
        "checkpoint": _newest(job_dir / "checkpoints"),
        "export": str(job_dir / "export"),
        "files": sorted(_files(job_dir)),
        "restarts": store.get_job(job_id).restarts,
    }


def _points(store: JobStore, job_id: str) -> Iterator[MetricPoint]:
    after: int | None = None
    while True:
        page = store.metrics(job_id, names=_MEASURED, after_step=after)
        yield from page.points
        if page.next_after_step is None:
            return
        after = page.next_after_step


def _throughput(points: list[MetricPoint]) -> float | None:
    """Items per second of all ranks together: the median over the reports, the first of them left out (warm-up).

    Every rank reports the rate of all, over its own seconds; the slowest rank's seconds count.
    """
    by_step: dict[int, float] = {}
    for point in points:
        if point.name == "items_per_s":
            by_step[point.step] = min(by_step.get(point.step, point.value), point.value)
    rates = [by_step[step] for step in sorted(by_step)]
    steady = sorted(rates[1:] or rates)
    return steady[len(steady) // 2] if steady else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _newest(checkpoints: Path) -> str | None:
    """The last committed checkpoint; names sort by step, and only a committed one has its manifest."""
    committed = sorted(path.parent for path in checkpoints.glob("step-*/manifest.json"))
    return str(committed[-1]) if committed else None


def _files(job_dir: Path) -> Iterator[str]:
    for folder in _ARTIFACTS:
        for parent, _, names in os.walk(job_dir / folder):
            yield from (str((Path(parent) / name).relative_to(job_dir)) for name in names)
