"""What a replica has learned, as lists of tensors: its reference, how far it has moved, and how means are taken in.

The reference r is the weights that all replicas agreed last. A mean that was on its way for some steps is taken in as
if it had been there at once: weights keep what the steps since have added, and a moment m of decay β, which is linear
in its past, becomes m + βᵏ(mean − m at the start) after k of them (so second moments stay positive).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workers.training.state import make_moments

# moment -> where its optimiser keeps the decay, and which of several it is
_DECAYS = {"exp_avg": ("betas", 0), "exp_avg_sq": ("betas", 1), "momentum_buffer": ("momentum", None)}
_NEVER_NEGATIVE = "exp_avg_sq"
_JUST_INSIDE = 1 - 1e-6  # what rounding in float32 may add


class ReplicaWeights:
    """The parameters, floating buffers and moments of a replica. All tensors are changed in place.

    ``reference`` and what ``snapshot`` keeps are copies; ``parameters`` and the rest are the replica's own.
    """

    def __init__(self, model: nn.Module, *, optimizer: torch.optim.Optimizer) -> None:
        make_moments(optimizer)
        self._optimizer = optimizer
        self.parameters = [parameter.data for parameter in model.parameters() if parameter.requires_grad]
        self.gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        self._buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._moments: list[Tensor] = []
        self._decays: list[float] = []
        self._kinds: list[str] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                for kind, moment in optimizer.state[parameter].items():
                    if kind in _DECAYS:
                        self._moments.append(moment)
                        self._decays.append(_decay(group, kind))
                        self._kinds.append(kind)
        self._steps = [state["step"] for state in optimizer.state.values() if "step" in state]
        self._kept: list[Tensor] = []
        self.agree()

    @property
    def everything(self) -> list[Tensor]:
        """What a synchronisation is the mean of: parameters, buffers, moments."""
        return [*self.parameters, *self._buffers, *self._moments]

    @property
    def averaged_weights(self) -> list[Tensor]:
        """``everything`` but the moments."""
        return [*self.parameters, *self._buffers]

    def agree(self) -> None:
        """Make the present weights the reference."""
        self.reference = [parameter.clone() for parameter in self.parameters]
        self.reference_norm = norm(self.reference)

    def distance(self) -> float:
        """‖w − r‖."""
        return distance(self.parameters, self.reference)

    def keep(self) -> None:
        """Keep everything, the optimiser's count of steps too, for ``restore``."""
        kept = [*self.everything, *self._steps]
        if not self._kept:
            self._kept = [tensor.clone() for tensor in kept]
        torch._foreach_copy_(self._kept, kept)

    def restore(self) -> None:
        """Be as at the last ``keep``."""
        torch._foreach_copy_([*self.everything, *self._steps], self._kept)

    def draw_towards(self, centre: Sequence[Tensor], *, most: float) -> None:
        """Bring the parameters within ``most`` of ``centre``, on the straight way; moments stay as they are."""
        away = distance(self.parameters, centre)
        if away > most:
            torch._foreach_lerp_(self.parameters, list(centre[: len(self.parameters)]), 1 - _JUST_INSIDE * most / away)

    def count_steps(self, clock: int) -> None:
        """Tell the optimiser that it has taken ``clock`` steps, as all replicas have where they agree."""
        for step in self._steps:
            step.fill_(clock)

    def take_in(self, means: Sequence[Tensor], *, snapshot: Sequence[Tensor] | None, num_steps: int) -> None:
        """Put ``means`` of ``everything`` in place; the parameters' become the reference.

        ``snapshot`` is what this replica gave ``num_steps`` steps ago; None where it has not moved since.
        """
        num_weights = len(self.parameters) + len(self._buffers)
        self.reference = [mean.clone() for mean in means[: len(self.parameters)]]
        self.reference_norm = norm(self.reference)
        if snapshot is None:
            torch._foreach_copy_(self.everything, list(means))
            return
        change = torch._foreach_sub(list(means), list(snapshot))
        for moved, decay in zip(change[num_weights:], self._decays, strict=True):
            moved.mul_(decay**num_steps)
        torch._foreach_add_(self.everything, change)
        for moment, kind in zip(self._moments, self._kinds, strict=True):
            if kind == _NEVER_NEGATIVE:
                moment.clamp_(min=0)  # what rounding may leave below

    def step_at(self, learning_rate: float) -> None:
        """The optimiser's step at another rate than its own."""
        own = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        for group, rate in zip(self._optimizer.param_groups, own, strict=True):
            group["lr"] = rate

    def learning_rate(self) -> float:
        """η of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])


def distance(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """The Euclidean distance of ``tensors`` from the first of ``others``."""
    return norm(torch._foreach_sub(list(tensors), list(others[: len(tensors)])))


def norm(tensors: Iterable[Tensor]) -> float:
    """The Euclidean norm of all of ``tensors`` together."""
    parts = torch._foreach_norm(list(tensors))
    return float(torch.linalg.vector_norm(torch.stack(parts)))


def _decay(group: Mapping[str, Any], kind: str) -> float:
    name, place = _DECAYS[kind]
    return float(group[name] if place is None else group[name][place])
