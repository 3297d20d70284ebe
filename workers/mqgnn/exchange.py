"""What replicas tell each other: a small communicator, and the rule by which gradients are combined every step.

``Exchange`` is the seam for other rules (fewer, later, damped exchanges): the engine calls ``combine`` between
backward and update and knows nothing else. ``AllReduce`` is the synchronous rule: sums over replicas. Since every
replica divides its loss by the seeds of the step over all replicas, the sum is the gradient of the mean over the global
batch, whatever each part weighs, and a replica without seeds adds zeros.
"""

from collections.abc import Iterable
from typing import Protocol

import torch.distributed as dist
from torch import Tensor, nn

_BUCKET_BYTES = 25 * 2**20  # as in torch's DistributedDataParallel: large enough for bandwidth


class Communicator:
    """Collectives over the replicas on a process group of their own; alone (``group`` None) they do nothing."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group

    @property
    def world_size(self) -> int:
        """Number of replicas."""
        return 1 if self.group is None else self.group.size()

    def sum_in_place(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over replicas; all are on their way at once."""
        if self.group is not None:
            for work in [self.group.allreduce([tensor]) for tensor in tensors]:
                work.wait()

    def broadcast_in_place(self, tensor: Tensor, *, source: int) -> None:
        """Replace ``tensor`` (contiguous) by that of replica ``source``."""
        if self.group is not None:
            self.group.broadcast(tensor, source).wait()

    def barrier(self) -> None:
        """Return when all replicas have come here."""
        if self.group is not None:
            self.group.barrier().wait()


def open_communicator(world_size: int) -> Communicator:
    """A communicator over all ranks of the default group, beside it. Collective. ``close_communicator`` ends it."""
    return Communicator(dist.new_group() if world_size > 1 else None)


def close_communicator(communicator: Communicator) -> None:
    """Free what ``open_communicator`` made."""
    if communicator.group is not None:
        dist.destroy_process_group(communicator.group)


class Exchange(Protocol):
    """A rule of exchange between backward and update."""

    def zero(self) -> None:
        """Before backward: clear the gradients."""

    def combine(self, loss: Tensor) -> Tensor:
        """After backward: combine gradients in place; ``loss`` is this replica's share, the answer that of all."""


class AllReduce:
    """Sums gradients over replicas, in flat buckets; the loss travels in the first of them.

    The gradients of all parameters are views of the buckets from the start, so nothing is packed or unpacked, and a
    parameter that a step did not use counts as zero instead of stopping the others.
    """

    def __init__(self, model: nn.Module, *, communicator: Communicator) -> None:
        self._communicator = communicator
        self._buckets = _lay_out([parameter for parameter in model.parameters() if parameter.requires_grad])

    def zero(self) -> None:
        """Clear all buckets."""
        for bucket in self._buckets:
            bucket.zero_()

    def combine(self, loss: Tensor) -> Tensor:
        """Sum gradients and ``loss`` (a scalar) over replicas; returns the summed loss."""
        slot = self._buckets[0][-1]
        slot.copy_(loss.detach())
        self._communicator.sum_in_place(self._buckets)
        return slot.clone()


def _lay_out(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Flat buffers of one dtype each, with every parameter's ``grad`` a view; the first has one slot more."""
    groups: list[list[nn.Parameter]] = []
    for parameter in parameters:
        last = groups[-1] if groups else []
        fits = sum(other.nbytes for other in last) + parameter.nbytes <= _BUCKET_BYTES
        if last and fits and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            groups.append([parameter])
    return [_lay_out_bucket(group, spare=int(position == 0)) for position, group in enumerate(groups)]


def _lay_out_bucket(parameters: list[nn.Parameter], *, spare: int) -> Tensor:
    bucket = parameters[0].new_zeros(sum(parameter.numel() for parameter in parameters) + spare)
    start = 0
    for parameter in parameters:
        parameter.grad = bucket[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return bucket
