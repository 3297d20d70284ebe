"""The shell that Ray Train runs on every rank: from a config of plain values to ``run_rank`` and back as reports.

The config crosses Ray's dashboard in the clear, so it holds the spec, the plan and paths, and never a secret. The
process group stands before ``train_loop`` is called (``ray_backend.py``).
"""

import faulthandler
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import Checkpoint
from ray.train.torch import get_device
from ray.train.v2._internal.execution import context as rays_context
from ray.train.v2.api.report_config import CheckpointUploadMode

from planner.frozen import Frozen
from planner.plan import Plan, parse_plan
from workers.data.paths import DataPaths
from workers.runtime import run_rank
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.run import RankRun, Report
from workers.versions import check_version


class LoopConfig(Frozen):
    """What the driver hands to every rank. ``graphmill_version`` is the driver's; ranks of another one refuse."""

    graphmill_version: str
    spec: TrainSpec
    plan: Plan
    data_root: Path | None
    data_cache: Path
    job_dir: str
    model_from: str | None = None
    max_rank_silence_s: float = 20.0


def train_loop(config: dict[str, Any]) -> dict[str, float]:
    """Train one rank. ``config`` is a ``LoopConfig`` in JSON types.

    Raises ``PlanInvalidError`` and the errors of ``workers.errors``.
    """
    loop = LoopConfig.model_validate({**config, "plan": parse_plan(config["plan"])})
    node = ray.util.get_node_ip_address()
    check_version(loop.graphmill_version, node=node)
    logging.getLogger(rays_context.__file__).setLevel(logging.WARNING)  # it prints every report of every rank in full
    context = ray.train.get_context()
    rank = context.get_world_rank()
    job_dir = Folder(loop.job_dir)
    with _fatal_signals_leave_a_trace(job_dir, rank=rank):
        return run_rank(
            RankRun(
                spec=loop.spec,
                plan=loop.plan,
                rank=rank,
                world_size=context.get_world_size(),
                device=get_device() if torch.cuda.is_available() else torch.device("cpu"),
                data=DataPaths(root=loop.data_root, cache=loop.data_cache),
                job_dir=job_dir,
                report=_reporter(rank=rank, node=node),
                model_from=None if loop.model_from is None else Folder(loop.model_from),
                address=node,
                max_silence_s=loop.max_rank_silence_s,
            )
        )


def crash_file_name(rank: int) -> str:
    """Where below ``logs/`` a rank that dies of a signal leaves its stack."""
    return f"rank-{rank:05d}.crash"


def _reporter(*, rank: int, node: str) -> Callable[[Report], None]:
    """How this rank reports: values, and who it is. A checkpoint of ours stays where it is."""
    who = {"rank": rank, "pid": os.getpid(), "node": node}

    def report(said: Report) -> None:
        metrics = {
            **who,
            "step": said.step,
            "total_steps": said.total_steps,
            "epoch": said.epoch,
            "values": dict(said.values),
        }
        ray.train.report(
            metrics,
            checkpoint=None if said.checkpoint is None else _checkpoint(said.checkpoint),
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )

    return report


def _checkpoint(uri: str) -> Checkpoint:
    filesystem, path = Folder(uri).for_arrow()
    return Checkpoint(path, filesystem=filesystem)


@contextmanager
def _fatal_signals_leave_a_trace(job_dir: Folder, *, rank: int) -> Iterator[None]:
    """Have SIGSEGV, SIGBUS, SIGABRT and their like write the rank's stack into ``logs/rank-N.crash`` of the job.

    Ray tells only that a worker's connection closed. An object store cannot take what a dying process writes, so there
    is no such file then.
    """
    if not job_dir.is_local:
        yield
        return
    path = Path(job_dir.uri) / "logs" / crash_file_name(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.enable()
    path.unlink(missing_ok=True)
