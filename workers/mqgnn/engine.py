"""One optimiser step of one replica, in three parts that can be called, and timed, apart: compute, exchange, update.

On CUDA ``compute`` only launches; the wait for the device falls into ``exchange``, which reads the loss.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workers.models.sampled import forward_blocks
from workers.mqgnn.counter_rng import Stream, stream_seed
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.minibatch import MiniBatch


class ReplicaStep:
    """The model's side of a step. ``seed`` and ``rank`` choose the dropout masks, which depend on the step alone."""

    def __init__(
        self, model: nn.Module, *, optimizer: torch.optim.Optimizer, exchange: Exchange, seed: int, rank: int
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._exchange, self._seed, self._rank = exchange, seed, rank

    def compute(self, batch: MiniBatch) -> Tensor:
        """Forward and backward. Returns this replica's share of the mean loss over the step's seeds, a scalar.

        With no seeds the share is zero and the gradients are.
        """
        batch.wait()
        torch.manual_seed(stream_seed(Stream.DROPOUT, self._seed, batch.task.epoch, batch.task.batch, self._rank))
        self._exchange.zero()
        self.model.train()
        logits = forward_blocks(
            self.model,
            batch.x,
            indptr=batch.indptr,
            indices=batch.indices,
            num_nodes_per_hop=batch.num_sampled_nodes_per_hop,
            num_edges_per_hop=batch.num_sampled_edges_per_hop,
        )
        loss = cross_entropy(logits, batch.y, reduction="sum") / batch.num_seeds_all
        if len(batch.y):
            loss.backward()
        return loss.detach()

    def exchange(self, loss: Tensor) -> float:
        """Combine gradients over replicas. Returns the mean loss over the step's seeds of all replicas."""
        return self._exchange.combine(loss).item()

    def update(self) -> None:
        """Apply the gradients."""
        self.optimizer.step()


def build_optimizer(model: nn.Module, *, learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
    """Adam with L2 regularisation (Kingma & Ba, ICLR 2015), all parameters in one fused pass."""
    return torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=weight_decay, fused=True)
