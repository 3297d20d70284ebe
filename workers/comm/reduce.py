"""Sums over the ranks of an axis. Every rank holds the same bits afterwards; an axis of one rank is left alone."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workers.comm.mesh import Axis

# One message for many small gradients; large enough that latency no longer counts, small against the model.
_BUCKET_BYTES = 25 * 2**20


def sum_tensor(tensor: Tensor, *, axis: Axis) -> Tensor:
    """``tensor`` summed over ``axis``, in place; also returned."""
    if axis.group is not None:
        dist.all_reduce(tensor, group=axis.group)
    return tensor


def sum_gradients(parameters: Iterable[nn.Parameter], *, axis: Axis) -> None:
    """Sum the gradients of ``parameters`` over ``axis``; a parameter without one counts as zero.

    Gradients travel in flat buckets, in the order of ``parameters``, which must be the same on all ranks.
    """
    if axis.group is None:
        return
    for bucket in _buckets(parameters):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        dist.all_reduce(flat, group=axis.group)
        sizes = [parameter.numel() for parameter in bucket]
        for parameter, part in zip(bucket, flat.split(sizes), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of neighbours of one dtype, each closed when it reaches ``_BUCKET_BYTES``."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(member.nbytes for member in bucket) >= _BUCKET_BYTES
        if bucket and (full or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
