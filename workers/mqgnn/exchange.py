"""The rule by which replicas combine their gradients every step.

``Exchange`` is the seam for other rules (fewer, later, damped exchanges): the engine calls ``combine`` between
backward and update and knows nothing else. ``AllReduce`` is the synchronous rule: sums over replicas. Since every
replica divides its loss by the seeds of the step over all replicas, the sum is the gradient of the mean over the global
batch, whatever each part weighs, and a replica without seeds adds zeros.
"""

from typing import Protocol

from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.comm.reduce import in_buckets


class Exchange(Protocol):
    """A rule of exchange between backward and update."""

    def zero(self) -> None:
        """Before backward: clear the gradients."""

    def combine(self, loss: Tensor) -> Tensor:
        """After backward: combine gradients in place; ``loss`` is this replica's share, the answer everyone's."""


class AllReduce:
    """Sums gradients over the replicas on ``axis``, in flat buckets; the losses travel in the first of them.

    The gradients of all parameters are views of the buckets from the start, so nothing is packed or unpacked, and a
    parameter that a step did not use counts as zero instead of stopping the others.
    """

    def __init__(self, model: nn.Module, *, axis: Axis) -> None:
        self._axis = axis
        trained = in_buckets(parameter for parameter in model.parameters() if parameter.requires_grad)
        self._buckets = [_lay_out(bucket, spare=0 if place else axis.size) for place, bucket in enumerate(trained)]

    def zero(self) -> None:
        """Clear all buckets."""
        for bucket in self._buckets:
            bucket.zero_()

    def combine(self, loss: Tensor) -> Tensor:
        """Sum gradients over replicas. Returns the ``loss`` (a scalar) of each replica, [size of the axis].

        Each has a place of its own on the way, so that all know who sent a number that is none.
        """
        places = self._buckets[0][-self._axis.size :]
        places[self._axis.index] = loss.detach()
        self._axis.sum_in_place(*self._buckets)
        return places.clone()


def _lay_out(parameters: list[nn.Parameter], *, spare: int) -> Tensor:
    """A flat buffer with every parameter's ``grad`` a view of it, and ``spare`` places at its end."""
    bucket = parameters[0].new_zeros(sum(parameter.numel() for parameter in parameters) + spare)
    start = 0
    for parameter in parameters:
        parameter.grad = bucket[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return bucket
