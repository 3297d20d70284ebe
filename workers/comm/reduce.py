"""What all ranks of an axis hold alike: first weights, and gradients summed in buckets. The same bits on every rank."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from workers.comm.axis import Axis

# One message for many small gradients; large enough that latency no longer counts, small against the model.
BUCKET_BYTES = 25 * 2**20


def sum_gradients(parameters: Iterable[nn.Parameter], *, axis: Axis) -> None:
    """Sum the gradients of ``parameters`` over ``axis``; a parameter without one counts as zero.

    Gradients travel in flat buckets, in the order of ``parameters``, which must be the same on all ranks.
    """
    parameters = list(parameters)
    count_missing_as_zero(parameters)
    if axis.group is None:
        return
    for bucket in in_buckets(parameters):
        flat = torch.cat([parameter.grad.flatten() for parameter in bucket])
        axis.sum_in_place(flat)
        sizes = [parameter.numel() for parameter in bucket]
        for parameter, part in zip(bucket, flat.split(sizes), strict=True):
            parameter.grad.copy_(part.view_as(parameter))


def count_missing_as_zero(parameters: Iterable[nn.Parameter]) -> None:
    """A gradient of zeros where there is none."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def copy_from_first(tensors: Iterable[Tensor], *, axis: Axis) -> None:
    """Give all ranks of ``axis`` the first one's values.

    Seeds alone do not make first weights equal: processors differ in their last bits, modules of others may draw from
    generators of their own. ``tensors`` come in the same order everywhere.
    """
    if axis.group is None:
        return
    for tensor in tensors:
        values = tensor.detach().contiguous()
        axis.broadcast_in_place(values, source=0)
        tensor.detach().copy_(values)


def in_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of neighbours of one dtype, each closed when it reaches ``BUCKET_BYTES``."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(member.nbytes for member in bucket) >= BUCKET_BYTES
        if bucket and (full or bucket[0].dtype != parameter.dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
