"""How many steps lie between two means: what the rule of the period has heard so far, and what it says now.

All that it hears is equal on all replicas (sums and maxima that came with a mean), so all keep the same pace.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.sync import SyncRule
from workers.mqgnn.racom.rules import next_kappa, sync_period


@dataclass
class Since:
    """What a replica has done since it last gave to a mean."""

    num_steps: int = 0
    num_seeds: int = 0  # of its own steps
    loss_sum: float = 0.0  # over ``loss_seeds``
    loss_seeds: int = 0
    drift_over_bound: float = 0.0

    def add_loss(self, loss: float, *, num_seeds: int) -> None:
        """``loss`` was the mean over ``num_seeds`` of this replica's own."""
        self.loss_sum += loss * num_seeds
        self.loss_seeds += num_seeds

    def __add__(self, other: "Since") -> "Since":
        """Both, where what the first gave did not arrive."""
        return Since(
            num_steps=self.num_steps + other.num_steps,
            num_seeds=self.num_seeds + other.num_seeds,
            loss_sum=self.loss_sum + other.loss_sum,
            loss_seeds=self.loss_seeds + other.loss_seeds,
            drift_over_bound=max(self.drift_over_bound, other.drift_over_bound),
        )


class Pace:
    """The adaptive period of ``rule``."""

    def __init__(self, rule: SyncRule) -> None:
        self._rule = rule
        self._kappa, self._first_loss, self._loss = 1.0, 0.0, 0.0

    def hear(self, *, loss_sum: float, loss_seeds: float, drift_over_bound: float) -> None:
        """Hear of the replicas' steps before a mean: their losses over all seeds, and the largest drift."""
        if loss_seeds:
            self._loss = loss_sum / loss_seeds
            self._first_loss = self._first_loss or self._loss
            self._kappa = next_kappa(self._kappa, drift_over_bound=drift_over_bound)

    def period(self, *, learning_rate: float) -> int:
        """Steps to the next mean."""
        return sync_period(
            self._rule,
            learning_rate=learning_rate,
            loss=self._loss,
            first_loss=self._first_loss,
            kappa=self._kappa,
        )

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"kappa": self._kappa, "first_loss": self._first_loss, "loss": self._loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; from one of another rule as at the start."""
        self._kappa, self._first_loss = state.get("kappa", 1.0), state.get("first_loss", 0.0)
        self._loss = state.get("loss", 0.0)
