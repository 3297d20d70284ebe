"""The learning rate of every step. Constant and cosine are functions of the step; plateau remembers its cuts.

warm-up       peak · step / warm-up steps
constant      peak
cosine        peak · (1 + cos(π · share of the steps after the warm-up)) / 2   (Loshchilov & Hutter, ICLR 2017)
plateau       peak · factor^cuts, a cut after ``patience`` evaluations without a better score
"""

import math
from typing import Any

import torch

from workers.spec import ScheduleSpec


class Schedule:
    """Sets the rate of an optimiser. All ranks see the same scores, so they take the same decisions."""

    def __init__(self, spec: ScheduleSpec, *, peak: float, steps_per_epoch: int, total_steps: int) -> None:
        self._spec, self._peak = spec, peak
        self._warmup_steps = spec.warmup_epochs * steps_per_epoch
        self._total_steps = total_steps
        self._num_cuts = self._num_worse = 0

    def rate(self, step: int) -> float:
        """The learning rate of optimiser step ``step``, 1 to the total."""
        if step <= self._warmup_steps:
            return self._peak * step / self._warmup_steps
        if self._spec.name == "cosine":
            share = (step - 1 - self._warmup_steps) / (self._total_steps - self._warmup_steps)
            return self._peak * (1 + math.cos(math.pi * share)) / 2
        return self._peak * self._spec.factor**self._num_cuts

    def apply(self, optimizer: torch.optim.Optimizer, *, step: int) -> None:
        """Make step ``step`` run at its rate."""
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)

    def scored(self, *, is_better: bool) -> None:
        """Hear of an evaluation."""
        self._num_worse = 0 if is_better else self._num_worse + 1
        if self._spec.name == "plateau" and self._num_worse >= self._spec.patience:
            self._num_worse, self._num_cuts = 0, self._num_cuts + 1

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"num_cuts": self._num_cuts, "num_worse": self._num_worse}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._num_cuts, self._num_worse = state["num_cuts"], state["num_worse"]
