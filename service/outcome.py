"""The result of a finished run: what it reached, what it took, and how both compare with what the plan promised."""

from collections.abc import Mapping
from typing import Any

from planner.plan import MegaGraphPlan, MQGNNPlan
from service.job_files import committed_checkpoints, list_artifacts
from service.jobs import measure, steady_value
from service.settings import Settings
from service.store.job_store import JobStore
from workers.training.folder import Folder

_MEASURED = ("step_time_s", "peak_memory_bytes", "items_per_s")


def build_result(
    job_id: str, *, last: Mapping[str, float], plan: MegaGraphPlan | MQGNNPlan, store: JobStore, settings: Settings
) -> dict[str, Any]:
    """Everything that the doors show of a finished job. ``last``: values of rank 0's last report."""
    points = store.newest_metrics(job_id, names=_MEASURED)
    measured = measure(points)
    job = Folder(settings.job_uri(job_id))
    checkpoints = committed_checkpoints(job)
    predicted = plan.predicted
    return {
        **{name: value for name, value in last.items() if name.startswith(("test_", "val_"))},
        "best_epoch": _whole(last.get("best_epoch")),
        "items_per_s": steady_value(points, "items_per_s", worst=min),  # every rank reports the rate of all
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


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
