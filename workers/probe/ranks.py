"""The ranks of one probe: they start every measurement together and agree on its result.

All ranks that share cores measure at the same moment, so contention is in the numbers; where a synchronous step would
wait for the slowest rank, the slowest rank's number counts.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from workers.comm.axis import Axis

# A probe takes seconds; ranks that wait longer for each other wait for one that is gone.
_TIMEOUT = timedelta(seconds=60)


@dataclass(frozen=True)
class Meeting:
    """Where the key-value store of a group of ranks listens."""

    host: str
    port: int


def open_group(
    meeting: Meeting, *, rank: int, world_size: int, address: str, device_kind: str
) -> dist.ProcessGroup | None:
    """A process group of its own, apart from any default group; None for one rank. Collective.

    ``address`` is this rank's own, under which the others reach it: the host's name may resolve to something else.
    """
    if world_size == 1:
        return None
    store = dist.TCPStore(meeting.host, meeting.port, is_master=False, timeout=_TIMEOUT)
    if device_kind == "cuda":
        return dist.ProcessGroupNCCL(store, rank, world_size, _TIMEOUT)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = _TIMEOUT
    return dist.ProcessGroupGloo(store, rank, world_size, options)


class Ranks:
    """This rank's view of the group; alone (``group`` None) there is nothing to agree on."""

    def __init__(
        self,
        rank: int,
        *,
        world_size: int,
        group: dist.ProcessGroup | None,
        device: torch.device,
        address: str = "127.0.0.1",
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.group, self.device = group, device
        self.address = address  # under which the others reach this one

    @property
    def axis(self) -> Axis:
        """The line of all ranks."""
        return Axis(tuple(range(self.world_size)), self.rank, self.group)

    def barrier(self) -> None:
        """Return when all ranks have come here."""
        if self.group is not None:
            self.group.barrier().wait()

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest over the ranks of each of ``values``. Collective."""
        if self.group is None:
            return list(values)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.group.allreduce([tensor], options).wait()
        return tensor.tolist()

    def mean(self, values: Sequence[float]) -> list[float]:
        """The mean over the ranks of each of ``values``. Collective."""
        if self.group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.group.allreduce([tensor]).wait()
        return (tensor / self.world_size).tolist()

    def time_s(self, work: Callable[[], object], *, repeats: int) -> float:
        """Median seconds of ``work`` over ``repeats``, each started together; the slowest rank's. Collective."""
        seconds = []
        for _ in range(repeats):
            self.barrier()
            seconds.append(time_once_s(work, device=self.device))
        return self.largest([statistics.median(seconds)])[0]


def time_once_s(work: Callable[[], object], *, device: torch.device) -> float:
    """Seconds until ``work`` and all that it put on ``device`` are done."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    """Wait for the kernels of a CUDA device; a CPU has none outstanding."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
