"""One optimiser step and one evaluation, on all ranks together."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from planner.plan import Action
from workers.comm.mesh import Mesh
from workers.comm.reduce import sum_gradients
from workers.data.graph import TRAIN
from workers.megagraph.batches import LabelledBatch, ShardedBatches
from workers.megagraph.data_parallel import GraphDealer, StepShare
from workers.megagraph.executor import play
from workers.models.units import GraphTransformer
from workers.training.divergence import sum_shares
from workers.training.evaluation import count_correct


def run_step(
    model: GraphTransformer,
    *,
    optimizer: torch.optim.Optimizer,
    batches: ShardedBatches,
    share: StepShare,
    actions: tuple[Action, ...],
    mesh: Mesh,
    step: int,
    draw: int,
) -> float:
    """Train on this rank's ``share`` of optimiser step ``step``; the loss over the whole global batch.

    Raises ``TrainingDivergedError``, on every rank alike, before a loss that is no number reaches the parameters.
    """
    model.train()
    optimizer.zero_grad()

    def forward(micro_batch: int) -> Tensor:
        batch = batches.batch(share.micro_batches[micro_batch], draw=draw)
        return masked_loss(model(batch.inputs), batch, num_targets=share.num_targets)

    own_loss = play(actions, forward=forward)
    loss = _global_loss(own_loss, mesh=mesh, step=step)
    sum_gradients(model.parameters(), axis=mesh.world)
    optimizer.step()
    return loss


def masked_loss(logits: Tensor, batch: LabelledBatch, *, num_targets: int) -> Tensor:
    """Cross-entropy over the training nodes of ``batch``, as its part of the mean over ``num_targets`` nodes."""
    target = (batch.split == TRAIN) & (batch.y >= 0)
    return cross_entropy(logits[target], batch.y[target], reduction="sum") / num_targets


@torch.no_grad()
def count_global(model: GraphTransformer, *, batches: ShardedBatches, dealer: GraphDealer, mesh: Mesh) -> Tensor:
    """Correct and total predictions per split over all ranks, int64 [3, 2]. Only counts travel, never scores."""
    model.eval()
    counts = torch.zeros(3, 2, dtype=torch.int64)
    for graphs in dealer.evaluation():
        batch = batches.batch(graphs, draw=0)
        counts += count_correct(model(batch.inputs), y=batch.y, split=batch.split).cpu()
    counts = counts.to(next(model.parameters()).device)  # nccl sums only what lies on its GPU
    mesh.world.sum_in_place(counts)
    return counts.cpu()


def _global_loss(own_loss: Tensor, *, mesh: Mesh, step: int) -> float:
    """Sum over all ranks. Each rank's share has a place of its own on the way, to name the rank that diverged."""
    shares = torch.zeros(mesh.world.size, dtype=torch.float64, device=own_loss.device)
    shares[mesh.world.index] = own_loss
    mesh.world.sum_in_place(shares)
    return sum_shares(shares.tolist(), ranks=mesh.world.ranks, step=step)
