"""The shell that Ray Train runs on every rank: from a config of plain values to ``run_rank`` and back as reports.

The config crosses Ray's dashboard in the clear, so it holds the spec, the plan and paths, and never a secret. The
process group stands before ``train_loop`` is called, or the store of replicas that outlive each other
(``ray_backend.py``). These report each for itself (``comm/report_log.py``); what all report together through Ray Train
is a checkpoint on which all ranks have agreed, and nothing else.
"""

import faulthandler
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray.train import Checkpoint
from ray.train.torch import get_device
from ray.train.v2._internal.execution import context as rays_context
from ray.train.v2._internal.execution.checkpoint.sync_actor import SynchronizationBarrierResetError
from ray.train.v2.api.report_config import CheckpointUploadMode

from planner.frozen import Frozen
from planner.plan import Plan, parse_plan
from workers.comm.report_log import ReportWriter
from workers.data.paths import DataPaths
from workers.mqgnn.remote.actor import connect
from workers.ray_backend import replica_store
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
    store = replica_store() if outlive_each_other(loop.spec, loop.plan) else None
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
                report=_reporter(rank=rank, node=node, store=store, size=context.get_world_size()),
                model_from=None if loop.model_from is None else Folder(loop.model_from),
                address=node,
                max_silence_s=loop.max_rank_silence_s,
                store=store,
                samplers=connect(loop.plan.sampling) if samples_elsewhere(loop.spec, loop.plan) else None,
            )
        )


def outlive_each_other(spec: TrainSpec, plan: Plan) -> bool:
    """Whether the ranks of ``plan`` are replicas that go on when one of them dies."""
    return spec.task == "train" and plan.kind == "mqgnn" and plan.sync.outlives_replicas(num_ranks=plan.world_size)


def samples_elsewhere(spec: TrainSpec, plan: Plan) -> bool:
    """Whether actors sample for the ranks of ``plan``."""
    return spec.task == "train" and plan.kind == "mqgnn" and plan.sampling.is_remote


def crash_file_name(rank: int) -> str:
    """Where below ``logs/`` a rank that dies of a signal leaves its stack."""
    return f"rank-{rank:05d}.crash"


def _reporter(*, rank: int, node: str, store: dist.Store | None, size: int) -> Callable[[Report], None]:
    """How this rank reports: values, and who it is. A checkpoint of ours stays where it is."""
    who = {"rank": rank, "pid": os.getpid(), "node": node}
    writer = None if store is None else ReportWriter(store, rank=rank)

    def report(said: Report) -> None:
        metrics = {
            **who,
            "step": said.step,
            "total_steps": said.total_steps,
            "epoch": said.epoch,
            "values": dict(said.values),
        }
        if writer is None:
            _report_together(metrics, checkpoint=said.checkpoint)
            return
        writer.write(metrics)
        if said.checkpoint is not None and said.values["members"] == size:
            with suppress(SynchronizationBarrierResetError):  # one died on its way here
                _report_together({}, checkpoint=said.checkpoint)

    return report


def _report_together(metrics: dict[str, Any], *, checkpoint: str | None) -> None:
    ray.train.report(
        metrics,
        checkpoint=None if checkpoint is None else _checkpoint(checkpoint),
        checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
    )


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
