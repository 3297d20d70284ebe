"""The result of a finished run: what it reached, what it took, and how both compare with what the plan promised."""

from collections.abc import Mapping
from typing import Any

from planner.plan import MegaGraphPlan, MQGNNPlan
from service.job_files import committed_checkpoints, list_artifacts
from service.jobs import measure, read_points
from service.settings import Settings
from service.store.job_store import JobStore
from service.store.records import MetricPoint
from workers.training.folder import Folder

_MEASURED = ("step_time_s", "peak_memory_bytes", "items_per_s")


def build_result(
    job_id: str, *, last: Mapping[str, float], plan: MegaGraphPlan | MQGNNPlan, store: JobStore, settings: Settings
) -> dict[str, Any]:
    """Everything that the doors show of a finished job. ``last``: values of rank 0's last report."""
    points = list(read_points(store, job_id, names=_MEASURED))
    measured = measure(points)
    job = Folder(settings.job_uri(job_id))
    checkpoints = committed_checkpoints(job)
    predicted = plan.predicted
    return {
        **{name: value for name, value in last.items() if name.startswith(("test_", "val_"))},
        "best_epoch": _whole(last.get("best_epoch")),
        "items_per_s": _throughput(points),
        "step_time_s": measured.step_time_s,
        "predicted_step_time_s": None if predicted is None else predicted.step_time_s,
        "peak_memory_bytes": {str(rank): size for rank, size in measured.memory_bytes.items()},
        "predicted_memory_bytes": None if predicted is None else list(predicted.memory_bytes),
        "checkpoint": checkpoints[-1].uri if checkpoints else None,
        "export": (job / "export").uri if (job / "export").size("config.json") is not None else None,
        "predictions": (job / "predictions").uri if (job / "predictions").size("manifest.json") is not None else None,
        "files": [artifact.path for artifact in list_artifacts(job)],
        "restarts": store.get_job(job_id).restarts,
    }


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
