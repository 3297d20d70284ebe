"""Which seeds each replica takes at each step: a fresh permutation per epoch, cut into global batches, each dealt out.

Every training node is taken exactly once per epoch by exactly one replica, and all replicas make the same number of
steps: a replica whose part of a short batch is empty still takes the step, with no seeds. The parts of one batch
differ by at most one seed, or as their ``shares`` do, so contributions must be weighted by count (``num_seeds``), never
averaged over replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from workers.mqgnn.counter_rng import Stream, mix64_array, stream_key

# epoch, from 1 -> the epoch whose seeds and samples it uses, itself or an earlier one
SampledIn = Callable[[int], int]
# step, from 0 over all epochs -> the share of each replica in its seeds, in whole parts; the same on all replicas
Shares = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class BatchTask:
    """One step to prepare for: global batch ``batch`` (0-based) of ``epoch`` (1-based)."""

    epoch: int
    batch: int


@dataclass(frozen=True, eq=False)
class SeedOrder:
    """The seeds of every step. ``train_nodes`` [n] node numbers, ``batch_size`` seeds per step over all replicas.

    Without ``shares`` all replicas take equally many; without ``reuse`` every epoch has an order of its own.
    """

    train_nodes: np.ndarray
    batch_size: int
    seed: int
    world_size: int = 1
    shares: Shares | None = None
    reuse: SampledIn | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Global batches of an epoch, the same for every replica; the last may be short."""
        return -(-len(self.train_nodes) // self.batch_size)

    def num_seeds(self, batch: int) -> int:
        """Seeds of global batch ``batch`` (0-based) over all replicas; at least 1."""
        return min(self.batch_size, len(self.train_nodes) - batch * self.batch_size)

    def tasks(self, start: int, end: int) -> Iterator[BatchTask]:
        """The tasks of steps ``start`` + 1 to ``end``, counted from 1 over all epochs."""
        for step in range(start, end):
            epoch, batch = divmod(step, self.steps_per_epoch)
            yield BatchTask(epoch=epoch + 1, batch=batch)

    def sampled_in(self, epoch: int) -> int:
        """The epoch whose seeds and samples ``epoch`` uses."""
        return epoch if self.reuse is None else self.reuse(epoch)

    def part(self, *, epoch: int, batch: int, rank: int) -> np.ndarray:
        """The seeds of ``rank`` at global batch ``batch`` (0-based) of ``epoch`` (1-based); may be empty."""
        begin, count = batch * self.batch_size, self.num_seeds(batch)
        shares = self.shares_in(epoch=epoch, batch=batch)
        low, high = (begin + bound for bound in cut_seeds(count, shares)[rank : rank + 2])
        order = _permutation(len(self.train_nodes), self.seed, self.sampled_in(epoch))
        return self.train_nodes[order[low:high]]

    def shares_in(self, *, epoch: int, batch: int) -> tuple[int, ...]:
        """The share of each replica in the seeds of global batch ``batch`` of ``epoch``."""
        if self.shares is None:
            return (1,) * self.world_size
        return tuple(self.shares((epoch - 1) * self.steps_per_epoch + batch))


def cut_seeds(count: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Where ``count`` seeds are cut so that replica i takes its share of them: len(shares) + 1 bounds from 0."""
    total = sum(shares)
    return tuple(count * before // total for before in accumulate(shares, initial=0))


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    """A pseudo-random order of 0…size−1: positions sorted by a hash, so it is the same under any numpy."""
    hashes = mix64_array(np.arange(size, dtype=np.uint64) ^ stream_key(Stream.SEED_ORDER, seed, epoch))
    order = np.argsort(hashes, kind="stable")
    order.setflags(write=False)
    return order
