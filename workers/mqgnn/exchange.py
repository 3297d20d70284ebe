"""The rule by which replicas come to one model: gradients summed in every step, or less often, later, by weights.

``Exchange`` is the seam: the engine calls ``combine`` between backward and update, lets ``update`` take the step, and
knows nothing else. ``AllReduce`` is the synchronous rule: sums over replicas. Since every replica divides its loss by
the seeds of the step over all replicas, the sum is the gradient of the mean over the global batch, whatever each part
weighs, and a replica without seeds adds zeros. ``LocalSGD`` and ``racom.exchange.Racom`` let replicas step by
themselves; ``sync_rules.open_exchange`` chooses.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.comm.reduce import in_buckets
from workers.mqgnn.seed_order import Shares


class Exchange(Protocol):
    """A rule of exchange between backward and update. What is written here is that of a rule that acts every step."""

    shares: Shares | None = None  # equal ones
    bytes_sent = 0
    began_at: int | None = None  # the step after which others let this replica in; None where all began together

    def zero(self) -> None:
        """Before forward: clear the gradients."""

    def divisor(self, *, num_seeds: int, num_seeds_all: int) -> int:
        """What this replica divides the sum of its losses by: it has ``num_seeds`` of the step's ``num_seeds_all``."""
        return num_seeds_all

    def combine(self, loss: Tensor) -> Tensor:
        """After backward: combine gradients in place. ``loss`` is this replica's, the answer every replica's share."""

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the gradients."""
        optimizer.step()

    def meet(self) -> None:
        """Wait until all replicas have taken as many steps; all call it after the same one."""

    def agree(self) -> None:
        """As ``meet``, and all hold the same weights and moments afterwards."""

    def told(self, key: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, in JSON types, the same on all replicas; ``key`` names it. All call it alike."""
        return make()

    def figures(self) -> dict[str, float]:
        """What was measured since the last call, and the bytes that left this replica so far."""
        return {"bytes_sent": float(self.bytes_sent)}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, in JSON types; the same on all replicas after ``agree``."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside, filled in place when it is loaded."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on after ``step`` from the weights of a checkpoint, with what it kept."""

    def close(self) -> None:
        """Stop what runs beside the training."""


class _InBuckets(Exchange):
    """A rule whose gradients are views of flat buckets from the start."""

    def __init__(self, model: nn.Module, *, spare: int = 0) -> None:
        self._buckets = lay_out_gradients(model, spare=spare)

    def zero(self) -> None:
        """Clear all buckets."""
        for bucket in self._buckets:
            bucket.zero_()


class OwnSteps(_InBuckets):
    """What rules have in common by which a replica steps by itself: its gradient is a mean over its own seeds."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._num_seeds = 0  # of the present step

    def divisor(self, *, num_seeds: int, num_seeds_all: int) -> int:
        """The replica's own seeds."""
        self._num_seeds = num_seeds
        return max(1, num_seeds)


class AllReduce(_InBuckets):
    """Sums gradients over the replicas on ``axis``, in flat buckets; the losses travel in the first of them.

    The gradients of all parameters are views of the buckets from the start, so nothing is packed or unpacked, and a
    parameter that a step did not use counts as zero instead of stopping the others.
    """

    def __init__(self, model: nn.Module, *, axis: Axis) -> None:
        super().__init__(model, spare=axis.size)
        self._axis = axis

    def combine(self, loss: Tensor) -> Tensor:
        """Sum gradients over replicas. Returns the ``loss`` (a scalar) of each replica, [size of the axis].

        Each has a place of its own on the way, so that all know who sent a number that is none.
        """
        places = self._buckets[0][-self._axis.size :]
        places[self._axis.index] = loss.detach()
        self._axis.sum_in_place(*self._buckets)
        self.bytes_sent += sum(self._axis.bytes_of_sum(bucket.nbytes) for bucket in self._buckets)
        return places.clone()


def lay_out_gradients(model: nn.Module, *, spare: int = 0) -> list[Tensor]:
    """Flat buckets with every trained parameter's ``grad`` a view of one, ``spare`` places at the end of the first."""
    trained = in_buckets(parameter for parameter in model.parameters() if parameter.requires_grad)
    return [_lay_out(bucket, spare=0 if place else spare) for place, bucket in enumerate(trained)]


def _lay_out(parameters: list[nn.Parameter], *, spare: int) -> Tensor:
    bucket = parameters[0].new_zeros(sum(parameter.numel() for parameter in parameters) + spare)
    start = 0
    for parameter in parameters:
        parameter.grad = bucket[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return bucket
