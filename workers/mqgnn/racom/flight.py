"""A weighted mean of tensors over replicas that is on its way while they go on: one message, one collective.

Runs on a communicator of its own, whose threads (gloo) or stream (NCCL) carry it. Small figures travel in the same
message: sums over the replicas, and one number of each.
"""

import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from workers.comm.axis import Axis

_LOOK_S = 0.0005  # chosen: far below a message's time on any network


class Flight:
    """The mean of ``tensors`` over the replicas of ``axis``, each weighted by its ``weight`` (say, seeds).

    ``sums`` are added up over replicas, ``own`` is this replica's number, told to all. Started by construction, by all
    replicas alike; the tensors are copied first, so they may change at once.
    """

    def __init__(
        self, tensors: Sequence[Tensor], *, weight: float, axis: Axis, sums: Sequence[float] = (), own: float = 0.0
    ) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._num_sums, self._size = len(sums), axis.size
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).mul_(weight)
        figures = [weight, *sums, *[0.0] * axis.size]
        figures[len(sums) + 1 + axis.index] = own
        self._message = torch.cat((flat, flat.new_tensor(figures)))
        self.bytes_sent = axis.bytes_of_sum(self._message.nbytes)
        self.works: list[dist.Work] = [] if axis.group is None else [axis.group.allreduce([self._message])]

    def has_landed(self, *, within_s: float = 0.0) -> bool:
        """Whether ``wait`` would return at once, or does so ``within_s`` from now."""
        until = time.monotonic() + within_s
        while not all(work.is_completed() for work in self.works):
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    def wait(self) -> "Landed":
        """What has become of it. Raises what the communicator met, such as a peer that is gone: ``RuntimeError``."""
        for work in self.works:
            work.wait()
        flat, figures = self._message.split(
            (len(self._message) - self._num_sums - 1 - self._size, 1 + self._num_sums + self._size)
        )
        total, *rest = figures.tolist()
        if total:
            flat = flat / total
        parts = flat.split([shape.numel() for shape in self._shapes])
        return Landed(
            means=[part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)],
            weight=total,
            sums=rest[: self._num_sums],
            numbers=rest[self._num_sums :],
        )


class Landed:
    """``means`` (views of one tensor, zero where ``weight`` of all is), ``sums``, and ``numbers`` by replica."""

    def __init__(self, *, means: list[Tensor], weight: float, sums: list[float], numbers: list[float]) -> None:
        self.means, self.weight, self.sums, self.numbers = means, weight, sums, numbers
