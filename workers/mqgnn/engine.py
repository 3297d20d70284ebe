"""One optimiser step of one replica, in three parts that can be called, and timed, apart: compute, exchange, update.

How far replicas go together in it is the exchange's business. On CUDA ``compute`` only launches; the wait for the
device falls into ``exchange``, which reads the loss.
"""

import torch
from torch import Tensor, nn

from workers.models.sampled import forward_blocks
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.minibatch import MiniBatch
from workers.training.losses import Loss


class ReplicaStep:
    """The model's side of a step. ``seed`` chooses the dropout masks, with the step and the nodes; no rank does."""

    def __init__(
        self, model: nn.Module, *, optimizer: torch.optim.Optimizer, loss: Loss, exchange: Exchange, seed: int
    ) -> None:
        self.model, self.optimizer, self._loss = model, optimizer, loss
        self._exchange, self._seed = exchange, seed

    def compute(self, batch: MiniBatch) -> Tensor:
        """Forward and backward. Returns this replica's loss, a scalar, divided as its exchange says.

        With no seeds the loss is zero and the gradients are.
        """
        batch.wait()
        self._exchange.zero()
        self.model.train()
        draw = int(stream_key(Stream.DROPOUT, self._seed, batch.task.epoch, batch.task.batch))
        torch.manual_seed(draw)  # of what draws by itself, as modules and losses of others may: so resume is exact
        logits = forward_batch(self.model, batch, draw=draw)
        divisor = self._exchange.divisor(num_seeds=len(batch.y), num_seeds_all=batch.num_seeds_all)
        loss = self._loss(logits, batch.y) / divisor
        if len(batch.y):
            loss.backward()
        return loss.detach()

    def exchange(self, loss: Tensor) -> list[float]:
        """Combine gradients over replicas. Returns each replica's share of the mean loss over the step's seeds."""
        return self._exchange.combine(loss).tolist()

    def update(self) -> None:
        """Apply the gradients."""
        self._exchange.update(self.optimizer)


def forward_batch(model: nn.Module, batch: MiniBatch, *, draw: int = 0) -> Tensor:
    """Outputs [num_seeds, C] for the seeds of ``batch``; ``draw`` numbers what is dropped in training."""
    return forward_blocks(
        model,
        batch.x,
        node_ids=batch.node_ids,
        degrees=batch.degrees,
        indptr=batch.indptr,
        indices=batch.indices,
        num_nodes_per_hop=batch.num_sampled_nodes_per_hop,
        num_edges_per_hop=batch.num_sampled_edges_per_hop,
        edge_weights=batch.edge_weights,
        source_ids=batch.source_ids,
        nested=batch.nested,
        draw=draw,
    )
