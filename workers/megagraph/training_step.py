"""One optimiser step and one evaluation, on all ranks together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from planner.plan import Action
from workers.comm.axis import Axis
from workers.data.graph import TRAIN
from workers.megagraph.batches import LabelledBatch
from workers.megagraph.data_parallel import GlobalStep
from workers.megagraph.executor import Round
from workers.megagraph.first_bad_unit import find_bad_unit
from workers.megagraph.parallelize import ParallelModel
from workers.ops.counter_dropout import key_of
from workers.training.divergence import sum_shares
from workers.training.losses import Loss
from workers.training.metrics import Scoreboard
from workers.training.objective import Objective


def run_step(
    parallel: ParallelModel,
    *,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
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
        return masked_loss(logits, batch, loss=loss, num_targets=share.num_targets)

    work = Round(share.micro_batches, draw=draw)
    # what draws by itself, as modules of others may: the same when resumed, and not the same on all ranks
    torch.manual_seed(key_of(draw, parallel.world.index) >> 1)
    own_loss = parallel.executor.play(actions, work=work, loss=loss_of)
    shares = _shares(own_loss, axis=parallel.world)
    global_loss = sum_shares(
        shares, ranks=parallel.world.ranks, step=step, find_unit=lambda: find_bad_unit(parallel, work=work)
    )
    parallel.gradients.sum()
    optimizer.step()
    return global_loss


def masked_loss(outputs: Tensor, batch: LabelledBatch, *, loss: Loss, num_targets: int) -> Tensor:
    """``loss`` over the training rows of ``batch``, as its part of the mean over ``num_targets`` rows."""
    trained = batch.split == TRAIN
    return loss(outputs[trained], batch.y[trained]) / num_targets


@torch.no_grad()
def evaluate_global(
    parallel: ParallelModel, *, objective: Objective, batches: Sequence[tuple[int, ...]]
) -> dict[str, float]:
    """``{split}_{metric}`` of the metrics of ``objective``, the same on all ranks. Collective.

    ``batches`` are the graphs of every batch over all replicas.
    """
    parallel.model.eval()
    board = Scoreboard.of(objective, device=parallel.executor.device)
    for outputs, batch in parallel.executor.predict(Round(batches, draw=0)):
        board.add(outputs, y=batch.y, split=batch.split)
    return board.scores(parallel.world)


def _shares(own_loss: Tensor, *, axis: Axis) -> list[float]:
    """The losses of all ranks. Each has a place of its own on the way, to name the rank that diverged."""
    shares = torch.zeros(axis.size, dtype=torch.float64, device=own_loss.device)
    shares[axis.index] = own_loss
    axis.sum_in_place(shares)
    found: list[float] = shares.tolist()
    return found
