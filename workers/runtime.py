"""The one door to both runtimes: a plan's kind decides which of them runs, the spec's task what it does.

Comes in: a ``RankRun`` (spec, plan, rank, data, where to write, how to report). Goes out: the figures of the run, equal
on all ranks. Knows nothing of Ray: a rank started by ``torchrun`` or by a test goes through the same door.
"""

from dataclasses import replace

import torch

from planner.errors import PlanInvalidError
from workers.training.run import RankRun
from workers.watch.progress import GiveUp
from workers.watch.rank_watch import WatchTerms, run_apart, run_watched


def run_rank(run: RankRun) -> dict[str, float]:
    """Train, or use a trained model, as ``run.plan`` says, on this rank. Collective.

    Ranks watch each other: one that stops answering ends all of them, or is left behind where others outlive it
    (``workers.mqgnn.racom.membership``).

    Raises ``PlanInvalidError`` for a plan that belongs to another run, and the errors of ``workers.errors``.
    """
    if (run.plan.kind, run.plan.world_size) != (run.spec.kind, run.world_size):
        raise PlanInvalidError(
            f"the plan is of kind {run.plan.kind!r} for {run.plan.world_size} ranks, the run is of kind"
            f" {run.spec.kind!r} with {run.world_size}; plan again"
        )

    def work(give_up: GiveUp) -> dict[str, float]:
        return _run_here(replace(run, give_up=give_up))

    if run.world_size == 1 or run.store is not None:
        return run_apart(work)
    terms = WatchTerms(
        rank=run.rank,
        world_size=run.world_size,
        address=run.address,
        device=run.device,
        limit_s=run.max_silence_s,
    )
    return run_watched(work, terms=terms, progress=run.progress)


def _run_here(run: RankRun) -> dict[str, float]:
    """This rank's part, in the thread that trains: torch knows threads and the current device for each thread apart."""
    torch.set_num_threads(run.plan.num_threads)
    if run.device.type == "cuda" and run.device.index is not None:
        torch.cuda.set_device(run.device)  # what names no device, such as the barrier of NCCL's ranks, means this one
    if run.plan.kind == "megagraph":
        from workers.megagraph.predict import predict as predict_megagraph
        from workers.megagraph.train import train as train_megagraph

        return train_megagraph(run) if run.spec.task == "train" else predict_megagraph(run)
    from workers.mqgnn.predict import predict as predict_mqgnn
    from workers.mqgnn.train import train as train_mqgnn

    return train_mqgnn(run) if run.spec.task == "train" else predict_mqgnn(run)
