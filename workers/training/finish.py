"""How a run ends that used a model: predictions committed, one report with the scores."""

from workers.comm.axis import Axis
from workers.training.memory import PeakMemory
from workers.training.predictions import Predictions
from workers.training.run import RankRun, Report


def report_use(
    run: RankRun, *, scores: dict[str, float], predictions: Predictions, axis: Axis, memory: PeakMemory
) -> dict[str, float]:
    """Write and report; returns the values reported. Collective over ``axis``, the line of all ranks."""
    if run.spec.task == "predict":
        predictions.write(run.job_dir / "predictions", rank=run.rank, axis=axis, device=run.device)
    values = {"done": 1.0, **scores, "peak_memory_bytes": float(memory.peak_bytes())}
    run.report(Report(step=1, total_steps=1, epoch=1, values=values))
    return values
