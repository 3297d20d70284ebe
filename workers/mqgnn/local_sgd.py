"""Local SGD (Stich, ICLR 2019): every replica steps by itself, and every H steps all take the mean of their weights.

Equal shares, a fixed period, and everybody waits at each mean: the plain form that ``racom`` is measured against.
Moments stay the replica's own, but where replicas agree (evaluation, checkpoint).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.mqgnn.exchange import OwnSteps
from workers.mqgnn.racom.flight import Flight
from workers.mqgnn.racom.weights import ReplicaWeights


class LocalSGD(OwnSteps):
    """Means of the weights over ``axis`` every ``period`` steps, weighted by seeds."""

    def __init__(self, model: nn.Module, *, optimizer: torch.optim.Optimizer, axis: Axis, period: int) -> None:
        super().__init__(model)
        self._axis, self.period = axis, period
        self._weights = ReplicaWeights(model, optimizer=optimizer)
        self._losses: Tensor | None = None  # of each replica, as it told last
        self._clock = self._num_seeds_since = 0

    def combine(self, loss: Tensor) -> Tensor:
        """The share of each replica in the mean loss: others' as of the last mean, before the first as this one's."""
        if self._losses is None:
            self._losses = torch.full((self._axis.size,), float(loss), dtype=torch.float64)
        self._losses[self._axis.index] = float(loss)
        return self._losses / self._axis.size

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Step, then take the mean if it is due. Collective then."""
        if self._num_seeds:
            optimizer.step()
        self._num_seeds_since += self._num_seeds
        self._clock += 1
        if self._clock % self.period == 0:
            self._average(self._weights.averaged_weights)

    def agree(self) -> None:
        """Take the mean of weights and moments. Collective."""
        self._average(self._weights.everything)

    def figures(self) -> dict[str, float]:
        """The period and the bytes sent so far."""
        return super().figures() | {"sync_period": float(self.period)}

    def state_dict(self) -> dict[str, Any]:
        """The losses that the replicas told last."""
        return {} if self._losses is None else {"losses": self._losses.tolist()}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on after ``step``; losses hold for as many replicas as before."""
        self._clock = step
        losses = state.get("losses", [])
        if len(losses) == self._axis.size:
            self._losses = torch.tensor(losses, dtype=torch.float64)

    def _average(self, tensors: list[Tensor]) -> None:
        own = 0.0 if self._losses is None else float(self._losses[self._axis.index])
        flight = Flight(tensors, weight=self._num_seeds_since, axis=self._axis, own=own)
        landed = flight.wait()
        self.bytes_sent += flight.bytes_sent
        if landed.weight:  # else nobody has moved since the last mean
            torch._foreach_copy_(tensors, landed.means)
        self._losses = torch.tensor(landed.numbers, dtype=torch.float64)
        self._num_seeds_since = 0
