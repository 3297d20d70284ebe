"""Times collectives between the ranks of a probe at a few payloads: the samples behind the planner's α-β lines."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from planner.profiles import LinkSample
from workers.probe.ranks import Ranks

_CALLS_PER_TIMING = 4  # one call of a small payload is near the resolution of the barrier before it


def measure_links(payloads: Sequence[int], *, ranks: Ranks, repeats: int) -> tuple[LinkSample, ...]:
    """All-reduce, and a shift by one rank round the ring, of ``payloads`` bytes per rank. Empty for one rank."""
    if ranks.group is None:
        return ()
    samples = []
    for num_bytes in payloads:
        tensor = torch.ones(max(1, num_bytes // 4), dtype=torch.float32, device=ranks.device)
        for operation, call in (("all_reduce", _all_reduce(tensor, ranks)), ("p2p", _shift(tensor, ranks))):
            call()
            seconds = ranks.time_s(_repeated(call), repeats=repeats) / _CALLS_PER_TIMING
            samples.append(
                LinkSample(operation=operation, world_size=ranks.world_size, num_bytes=tensor.nbytes, seconds=seconds)
            )
    return tuple(samples)


def _repeated(call: Callable[[], None]) -> Callable[[], None]:
    def several() -> None:
        for _ in range(_CALLS_PER_TIMING):
            call()

    return several


def _all_reduce(tensor: torch.Tensor, ranks: Ranks) -> Callable[[], None]:
    def call() -> None:
        ranks.group.allreduce([tensor]).wait()
        tensor.fill_(1.0)  # sums must not grow without bound

    return call


def _shift(tensor: torch.Tensor, ranks: Ranks) -> Callable[[], None]:
    """Send to the next rank and receive from the one before, all ranks at once, as a ring does."""
    received = torch.empty_like(tensor)
    following, preceding = (ranks.rank + 1) % ranks.world_size, (ranks.rank - 1) % ranks.world_size

    def start() -> list[dist.Work]:
        return [ranks.group.send([tensor], following, 0), ranks.group.recv([received], preceding, 0)]

    def call() -> None:
        if ranks.device.type == "cuda":  # as one launch: nccl's send waits on the device for the peer's receive
            ranks.group._start_coalescing()
            start()
            works = [ranks.group._end_coalescing()]
        else:
            works = start()
        for work in works:
            work.wait()

    return call
