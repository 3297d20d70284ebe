"""One optimiser step and one evaluation, on all ranks together."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planner.plan import Action
from workers.comm.axis import Axis
from workers.data.graph import TRAIN
from workers.megagraph.batches import LabelledBatch
from workers.megagraph.data_parallel import GlobalStep
from workers.megagraph.executor import Round
from workers.megagraph.parallelize import ParallelModel
from workers.training.divergence import sum_shares
from workers.training.evaluation import count_correct


def run_step(
    parallel: ParallelModel,
    *,
    optimizer: torch.optim.Optimizer,
    share: GlobalStep,
    actions: Sequence[Action],
    step: int,
    draw: int,
) -> float:
    """Train on this rank's part of optimiser step ``step``; the loss over the whole global batch.

    Raises ``TrainingDivergedError``, on every rank alike, before a loss that is no number reaches the parameters.
    """
    parallel.model.train()
    optimizer.zero_grad()

    def loss_of(logits: Tensor, batch: LabelledBatch) -> Tensor:
        return masked_loss(logits, batch, num_targets=share.num_targets)

    own_loss = parallel.executor.play(actions, work=Round(share.micro_batches, draw=draw), loss=loss_of)
    loss = _global_loss(own_loss, axis=parallel.world, step=step)
    parallel.gradients.sum()
    optimizer.step()
    return loss


def masked_loss(logits: Tensor, batch: LabelledBatch, *, num_targets: int) -> Tensor:
    """Cross-entropy over the training nodes of ``batch``, as its part of the mean over ``num_targets`` nodes."""
    target = (batch.split == TRAIN) & (batch.y >= 0)
    return cross_entropy(logits[target], batch.y[target], reduction="sum") / num_targets


def count_global(parallel: ParallelModel, *, batches: Sequence[tuple[int, ...]]) -> Tensor:
    """Correct and total predictions per split over all ranks, int64 [3, 2]. Only counts travel, never scores.

    ``batches`` are the graphs of every batch over all replicas.
    """
    parallel.model.eval()
    counts = torch.zeros(3, 2, dtype=torch.int64, device=parallel.executor.device)
    for logits, batch in parallel.executor.predict(Round(batches, draw=0)):
        counts += count_correct(logits, y=batch.y, split=batch.split)
    parallel.world.sum_in_place(counts)
    return counts.cpu()


def _global_loss(own_loss: Tensor, *, axis: Axis, step: int) -> float:
    """Sum over all ranks. Each rank's share has a place of its own on the way, to name the rank that diverged."""
    shares = torch.zeros(axis.size, dtype=torch.float64, device=own_loss.device)
    shares[axis.index] = own_loss
    axis.sum_in_place(shares)
    return sum_shares(shares.tolist(), ranks=axis.ranks, step=step)
