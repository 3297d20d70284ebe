"""Messages between two ranks of a line, started together, waited for together, and counted.

Every exchange of rows (``ring``, ``ulysses``, ``halo``) says what it has to say here. A transfer runs by itself between
its start and its wait; who starts it works in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from workers.comm.axis import Axis


@dataclass(frozen=True)
class Transfer:
    """Messages under way. ``sent`` is held so that its memory lives until it has left."""

    received: Mapping[int, Tensor]
    sent: tuple[Tensor, ...]
    works: tuple[dist.Work, ...]

    def wait(self) -> Mapping[int, Tensor]:
        """What has arrived, by the sender's place on the line. On CUDA the device waits, not this process."""
        for work in self.works:
            work.wait()
        return self.received


class Wire:
    """Sends to and receives from the other ranks of ``axis``. ``bytes_sent`` counts what left this rank."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis
        self.bytes_sent = 0

    def start(self, *, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], tag: int = 0) -> Transfer:
        """Send ``sends[place]`` (contiguous) and fill ``receives[place]``; an empty tensor is no message.

        The other rank must expect the same shape. Streams that may overlap are told apart by ``tag``.
        """
        messages = [
            (call, tensor, self.axis.ranks[place])
            for call, tensors in ((dist.isend, sends), (dist.irecv, receives))
            for place, tensor in tensors.items()
            if tensor.numel()
        ]
        assert all(rank != self.axis.ranks[self.axis.index] for _, _, rank in messages), "no wire to itself"
        operations = [dist.P2POp(call, tensor, rank, self.axis.group, tag) for call, tensor, rank in messages]
        self.bytes_sent += sum(tensor.nbytes for tensor in sends.values())
        works = tuple(dist.batch_isend_irecv(operations)) if operations else ()
        return Transfer(received=receives, sent=tuple(sends.values()), works=works)
