"""One optimiser step of one replica, in three parts that can be called, and timed, apart: compute, exchange, update.

How far replicas go together in it is the exchange's business. On CUDA ``compute`` only launches; the wait for the
device falls into ``exchange``, which reads the loss.
"""

from typing import Protocol

import torch
from torch import Tensor, nn

from workers.models.node_table import table_of
from workers.models.sampled import forward_blocks
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.minibatch import MiniBatch
from workers.training.losses import Loss


class Forward(Protocol):
    """How a model runs on a mini-batch; see ``forward_batch``."""

    def __call__(self, model: nn.Module, batch: MiniBatch, *, draw: int) -> Tensor:
        """Outputs [num_seeds, C]."""


class ReplicaStep:
    """The model's side of a step. ``seed`` chooses the dropout masks, with the step and the nodes; no rank does."""

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: torch.optim.Optimizer,
        loss: Loss,
        exchange: Exchange,
        seed: int,
        forward: Forward | None = None,
    ) -> None:
        """``forward`` says how ``model`` runs on a mini-batch; without it as ``forward_batch``."""
        self.model, self.optimizer, self._loss = model, optimizer, loss
        self._forward = forward or forward_batch
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
        logits = self._forward(self.model, batch, draw=draw)
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
    table = table_of(model)
    x = batch.x if table is None else table.beside(batch.x, batch.node_ids)
    return forward_blocks(model, x, batch.edges, draw=draw)
