"""How long from a submit to the first training step, and how much of it is ours.

Ours: the small Graphormer on karate, two ranks, on a warm cluster, with its data prepared and its profile known. The
floor: a bare Ray job with ``TorchTrainer`` and two ranks whose loop is one all-reduce, on the same cluster, in turn.
"""

import sys
import tempfile
import time
from pathlib import Path

from service.cluster import RunState
from service.spec import JobState
from tests.benchmarks.frame import Outcome, alternate, main, medians
from tests.kit.ray_cluster import LiveCluster, live_cluster
from tests.on_ray.jobs import transformer

ROUNDS = 3
FIRST_STEP_LIMIT_S = 20.0
OVERHEAD_LIMIT_S = 3.0


def measure() -> Outcome:
    """Submit to first step: ours and a bare Ray job, alternately; medians of three."""
    with tempfile.TemporaryDirectory(prefix="gmb") as home, live_cluster(Path(home)) as cluster:
        sides = {"ours": lambda: ours(cluster), "bare": lambda: bare(cluster, Path(home))}
        warm_up = {name: side() for name, side in sides.items()}
        values = alternate(sides, rounds=ROUNDS)
    middle = medians(values)
    figures = {"first_step_s": middle["ours"], "overhead_s": middle["ours"] - middle["bare"]}
    verdicts = {
        "first_step_s": figures["first_step_s"] <= FIRST_STEP_LIMIT_S,
        "overhead_s": figures["overhead_s"] <= OVERHEAD_LIMIT_S,
    }
    return Outcome(figures, verdicts, {"ours_s": values["ours"], "bare_s": values["bare"], "warm_up_s": warm_up})


def ours(cluster: LiveCluster) -> float:
    """Seconds from the submit of a job to the report of its first optimiser step."""
    submitted_at = time.time()
    job_id = cluster.submit(transformer(epochs=3))
    cluster.wait_for(job_id, JobState.FINISHED)
    first = cluster.store.metrics(job_id, names=("loss",), limit=1).points[0]
    assert first.step == 1
    _wait_until_over(cluster, job_id)
    return first.at.timestamp() - submitted_at


def bare(cluster: LiveCluster, folder: Path) -> float:
    """Seconds from the submit of a bare job to its first all-reduce."""
    name = f"bare-{time.time_ns()}"
    submitted_at = time.time()
    cluster.submit_bare(name, entrypoint=f"python -m tests.benchmarks.bare_train {folder / name}")
    _wait_until_over(cluster, name)
    return float((folder / name).read_text()) - submitted_at


def _wait_until_over(cluster: LiveCluster, submission_id: str) -> None:
    """The next side begins on a cluster at rest."""
    while not (run := cluster.client.status(submission_id)).state.is_over:
        time.sleep(0.1)
    assert run.state is RunState.SUCCEEDED, run.message
    cluster.wait_until_clean(timeout_s=60)


if __name__ == "__main__":
    sys.exit(main("first_step", measure))
