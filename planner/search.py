"""The cheapest candidate that fits: exact search with pruning by a bound on memory.

``find_best`` gives what brute force would give. A candidate whose lower bound on memory is already too high is not
priced, unless nothing fits and the nearest miss has to be named.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from planner.errors import NoPlanFitsError
from planner.plan import MegaGraphPlan, MQGNNPlan, RunnerUp

C = TypeVar("C")
_MAX_RUNNERS_UP = 3


@dataclass(frozen=True)
class Price:
    """What a candidate is predicted to take: seconds per optimiser step, and bytes of the rank that needs most."""

    step_time_s: float
    memory_bytes: int


@dataclass(frozen=True)
class Priced(Generic[C]):
    """A candidate with its price."""

    candidate: C
    price: Price


@dataclass(frozen=True)
class Found(Generic[C]):
    """The best candidate, and the others that were priced: best first, those that fit before those that do not."""

    best: Priced[C]
    others: tuple[Priced[C], ...]

    def num_fitting(self, limit_bytes: int | None) -> int:
        """How many candidates are within ``limit_bytes``."""
        return sum(_fits(entry, limit_bytes) for entry in (self.best, *self.others))


@dataclass(frozen=True)
class Choice:
    """The plan of the best candidate for one number of ranks, and that candidate in words."""

    plan: MegaGraphPlan | MQGNNPlan
    words: str


def find_best(
    candidates: Sequence[C],
    *,
    price: Callable[[C], Price],
    memory_bound_bytes: Callable[[C], int],
    limit_bytes: int | None,
    describe: Callable[[C], str],
) -> Found[C]:
    """The candidate with the least step time among those within ``limit_bytes`` (None: no limit is known).

    Equal times are decided by memory, then by the order of ``candidates``. ``memory_bound_bytes`` never exceeds the
    memory of the price. Raises ``NoPlanFitsError`` that names the candidate which misses the limit by least.
    """
    priced: list[Priced[C]] = []
    pruned: list[C] = []
    for candidate in candidates:
        if limit_bytes is not None and memory_bound_bytes(candidate) > limit_bytes:
            pruned.append(candidate)
        else:
            priced.append(Priced(candidate, price(candidate)))
    ordered = sorted(priced, key=lambda entry: (not _fits(entry, limit_bytes), *_rank(entry)))
    if ordered and _fits(ordered[0], limit_bytes):
        return Found(best=ordered[0], others=tuple(ordered[1:]))
    assert limit_bytes is not None, "without a limit every candidate fits"
    everything = priced + [Priced(candidate, price(candidate)) for candidate in pruned]
    raise _nothing_fits(everything, limit_bytes, describe)


def list_runners_up(found: Found[C], *, limit_bytes: int | None, describe: Callable[[C], str]) -> tuple[RunnerUp, ...]:
    """The next best candidates in words: how much slower they are, or how much memory they lack."""
    return tuple(
        RunnerUp(
            choice=describe(entry.candidate),
            step_time_s=entry.price.step_time_s,
            memory_bytes=entry.price.memory_bytes,
            lacks=_lacks(entry, found.best, limit_bytes),
        )
        for entry in found.others[:_MAX_RUNNERS_UP]
    )


def _rank(entry: Priced[C]) -> tuple[float, int]:
    return entry.price.step_time_s, entry.price.memory_bytes


def _fits(entry: Priced[C], limit_bytes: int | None) -> bool:
    return limit_bytes is None or entry.price.memory_bytes <= limit_bytes


def _lacks(entry: Priced[C], best: Priced[C], limit_bytes: int | None) -> str:
    if limit_bytes is not None and not _fits(entry, limit_bytes):
        missing = (entry.price.memory_bytes - limit_bytes) / 2**20
        return f"needs {missing:.0f} MiB more per rank than there is"
    slower = entry.price.step_time_s / best.price.step_time_s - 1 if best.price.step_time_s > 0 else 0.0
    if slower >= 0.005:
        return f"is {100 * slower:.0f} % slower"
    more = (entry.price.memory_bytes - best.price.memory_bytes) / 2**20
    return f"is as fast, and takes {more:.0f} MiB more per rank" if more >= 1 else "gains nothing"


def _nothing_fits(entries: Sequence[Priced[C]], limit_bytes: int, describe: Callable[[C], str]) -> NoPlanFitsError:
    nearest = min(entries, key=lambda entry: (entry.price.memory_bytes, entry.price.step_time_s))
    missing = nearest.price.memory_bytes - limit_bytes
    return NoPlanFitsError(
        f"none of {len(entries)} candidates fits into the {limit_bytes} bytes that a rank may take. The nearest"
        f" ({describe(nearest.candidate)}) needs {nearest.price.memory_bytes} bytes, {missing} bytes too many. Use more"
        " ranks on more nodes, nodes with more memory, or a smaller model",
        limit_bytes=limit_bytes,
        nearest=describe(nearest.candidate),
        needed_bytes=nearest.price.memory_bytes,
        missing_bytes=missing,
    )
