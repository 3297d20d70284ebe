"""A replica of a whole run is killed: the others go on, and it comes back among them."""

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.racom_runs import SAVED_AT, STEPS_PER_EPOCH, make_run
from tests.kit.gloo_pool import GlooPool
from workers.runtime import run_rank
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.run import Report

KILLED_AFTER, NUM_STEPS = 40, 2000
# every second step, the first, and each checkpoint
REPORTED = [step for step in range(1, NUM_STEPS + 1) if step == 1 or step % 2 == 0 or step % SAVED_AT == 0]


@dataclass(frozen=True)
class Course:
    """What one process reported, and which it was."""

    pid: int
    reports: list[Report]
    result: dict[str, float]


def run_replica(port: int, rank: int, world_size: int, folder: Path) -> Course:
    """Train as one of replicas that outlive each other; the last rank kills itself in its first life."""
    store = dist.PrefixStore(str(folder), dist.TCPStore("127.0.0.1", port, is_master=False))
    died = folder / "died"
    reports: list[Report] = []

    def report(said: Report) -> None:
        reports.append(said)
        if rank == world_size - 1 and said.step >= KILLED_AFTER and not died.exists():
            died.write_text(str(said.step))
            os.kill(os.getpid(), signal.SIGKILL)

    run = make_run(rank, world_size, str(folder), report)
    spec = run.spec.model_copy(
        update={"training": run.spec.training.model_copy(update={"epochs": NUM_STEPS // STEPS_PER_EPOCH})}
    )
    result = run_rank(replace(run, spec=spec, store=store, max_silence_s=5.0))
    return Course(os.getpid(), reports, result)


def test_a_killed_replica_leaves_the_others_training_and_comes_back(pool: GlooPool, tmp_path: Path) -> None:
    answers = pool.run_apart(run_replica, tmp_path, world_size=3)
    survivors, (death, back) = [courses[0] for courses in answers[:2]], answers[2]
    assert [len(courses) for courses in answers] == [1, 1, 2]
    assert "exit code -9" in str(death)
    for course in survivors:
        steps = [report.step for report in course.reports]
        assert steps == REPORTED, "a survivor began anew, or left steps out"
        members = [report.values["members"] for report in course.reports]
        assert members[0] == 3
        assert 2 in members
    assert back.result["done"] == 1
    if back.reports:  # else the others were faster than a new process
        assert back.reports[0].step > KILLED_AFTER
        assert back.reports[0].values["members"] == 3
        assert back.reports[-1].step == NUM_STEPS
    assert [course.result["test_accuracy"] for course in (*survivors, back)] == [back.result["test_accuracy"]] * 3
    model = load_exported(Folder(tmp_path / "job" / "export"))
    assert all(torch.isfinite(tensor).all() for tensor in model.state_dict().values())
