"""A line of ranks, and what they do together on a process group of their own.

Everything that ranks of a run tell each other goes over an ``Axis``: sums and broadcasts here, shards that go round by
``ring``. One rank needs no process group, so everything works where ``torch.distributed`` was never started.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

# A rank that is this long in a collective waits for one that will not come. Evaluation and checkpoints are sharded or
# short, so no rank is ever alone at work for minutes.
COLLECTIVE_TIMEOUT_S = 600


@dataclass(frozen=True)
class Axis:
    """The line of ranks through this one. ``ranks`` are global, this rank is ``ranks[index]``.

    ``group`` is None when the line is this rank alone; its collectives then do nothing. All of them are called by all
    ranks of the line, in the same order.
    """

    ranks: tuple[int, ...] = (0,)
    index: int = 0
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        """How many ranks share the line: the degree of the axis."""
        return len(self.ranks)

    @property
    def is_ordered(self) -> bool:
        """Whether messages are told apart by their order alone, and wait on the device (NCCL); gloo goes by tags."""
        return self.group is not None and self.group.name() == "nccl"

    def barrier(self) -> None:
        """Wait until all ranks of the line are here."""
        if self.is_ordered:
            _meet(self).item()  # NCCL's own barrier guesses the device, and does not keep this process waiting
        elif self.group is not None:
            self.group.barrier().wait()

    def sum_in_place(self, *tensors: Tensor) -> None:
        """Replace each tensor by its sum over the line, the same bits on every rank; all are on their way at once."""
        if self.group is not None:
            for work in [self.group.allreduce([tensor]) for tensor in tensors]:
                work.wait()

    def bytes_of_sum(self, num_bytes: int) -> int:
        """What leaves a rank when ``num_bytes`` are summed round a ring: once to add up, once to hand round."""
        return 2 * num_bytes * (self.size - 1) // self.size

    def broadcast_in_place(self, tensor: Tensor, *, source: int) -> None:
        """Replace ``tensor`` (contiguous) by that of the rank at place ``source`` of the line."""
        if self.group is not None:
            self.group.broadcast(tensor, source).wait()

    def first_says(self, number: int, *, device: torch.device) -> int:
        """The ``number`` of the first rank of the line; ``device`` is one that the group can send from."""
        said = torch.tensor([number], device=device)
        self.broadcast_in_place(said, source=0)
        return int(said)

    def fresh_store(self) -> dist.Store:
        """An empty key-value store of the line, which lives as long as its first rank. Collective."""
        assert self.group is not None, "a line of one rank has nobody to tell"
        store = self.group.get_group_store()
        return dist.PrefixStore(f"store/{store.add(f'stores/{self.index}', 1)}", store)

    def close(self) -> None:
        """Free the group that ``open_axis`` made."""
        if self.group is not None:
            dist.destroy_process_group(self.group)


def _meet(axis: Axis) -> torch.Tensor:
    """A number from all ranks of ``axis``, on the CUDA device of this process."""
    here = torch.ones(1, device="cuda")
    axis.sum_in_place(here)
    return here


def open_axis(lines: tuple[tuple[int, ...], ...], *, rank: int) -> Axis:
    """The one of ``lines`` that holds ``rank``. Collective: all ranks make the groups of all lines, in one order."""
    found = None
    for ranks in lines:
        group = None
        if len(ranks) > 1:
            group = dist.new_group(list(ranks), timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S))
        if rank in ranks:
            found = Axis(ranks=ranks, index=ranks.index(rank), group=group)
            if found.is_ordered:
                _meet(found)  # else the first message would build the communicator, waiting for ranks that send none
    assert found is not None, f"rank {rank} is on no line of {lines}"
    return found
