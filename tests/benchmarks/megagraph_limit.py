"""The largest graph that trains under 2 GiB per rank: ours on 4 ranks against the dense model and against Ulysses on 4.

Every probe is one whole training step in fresh processes, Adam's moments included, and its peak is measured. The search
ends when the largest graph that fits and the smallest one that does not are 3 percent apart; the former counts.

Our limit is that of the index, N^2 / P bytes per rank: with nothing beside it sqrt(P * 2 GiB) = 92,681 nodes. What
blocks keep for backward (rows, not pairs) takes its part of that. Beyond, an index of near pairs helps: the details say
what a rank takes with it on a graph of skewed degrees, at sizes whose step takes less than a minute, and where the line
through them meets 2 GiB. A step there would take hours, so that number is extrapolated, and no figure.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tests.benchmarks.frame import Outcome, main
from tests.benchmarks.megagraph_sides import Side, Size, dense_sides, peak_bytes

LIMIT_BYTES = 2 * 2**30
TOLERANCE = 0.03
DENSE_BAR, ULYSSES_BAR = 8.0, 3.0
NUM_RANKS = 4
NEAR_SIZES = (8_192, 16_384)
# side: where its search starts, below its limit by the sizes of its tensors, so that no probe asks for far too much
STARTS = {"ours": 65536, "dense": 2048, "ulysses": 4096}


@dataclass(frozen=True)
class Limit:
    """``num_nodes`` fit; ``probes`` are all peaks that were measured, in bytes, by number of nodes."""

    num_nodes: int
    probes: dict[int, int]


def measure() -> Outcome:
    """The limits of all sides, and their ratios."""
    return compare_limits(partial(peak_bytes, num_steps=1))


def compare_limits(peak_of: Callable[[Side, Size], int]) -> Outcome:
    """``measure`` with peaks from anywhere."""
    sides = {
        "ours": Side(NUM_RANKS),
        "dense": dense_sides(1)["by_hand"],
        "ulysses": dense_sides(NUM_RANKS)["by_hand"],
    }
    limits = {}
    for name, side in sides.items():

        def peak_with(num_nodes: int, side: Side = side, name: str = name) -> int:
            peak = peak_of(side, replace(Size(), num_nodes=num_nodes))
            print(f"{name}, {num_nodes} nodes: {peak / 2**30:.3f} GiB", flush=True)
            return peak

        limits[name] = largest(peak_with, start=STARTS[name], limit_bytes=LIMIT_BYTES)
    near = {num_nodes: peak_of(Side(NUM_RANKS), near_size(num_nodes)) for num_nodes in NEAR_SIZES}
    figures = {
        "n_ratio": limits["ours"].num_nodes / limits["dense"].num_nodes,
        "n_ratio_ulysses": limits["ours"].num_nodes / limits["ulysses"].num_nodes,
    }
    return Outcome(
        figures,
        {"n_ratio": figures["n_ratio"] >= DENSE_BAR, "n_ratio_ulysses": figures["n_ratio_ulysses"] >= ULYSSES_BAR},
        {name: {"num_nodes": limit.num_nodes, "peak_bytes": limit.probes} for name, limit in limits.items()}
        | {"near_pairs": {"peak_bytes": near, "extrapolated_num_nodes": extrapolated(near, limit_bytes=LIMIT_BYTES)}},
    )


def near_size(num_nodes: int) -> Size:
    """The same model on near pairs, which are few within two hops."""
    return Size(num_nodes=num_nodes, max_distance=2, index="near_pairs")


def extrapolated(peaks: dict[int, int], *, limit_bytes: int) -> int:
    """Where the line through the least and the largest size meets the limit."""
    (first, low), *_, (last, high) = sorted(peaks.items())
    return round(last + (limit_bytes - high) * (last - first) / (high - low))


def largest(peak_of: Callable[[int], int], *, start: int, limit_bytes: int) -> Limit:
    """The largest number of nodes with a peak of at most ``limit_bytes``, up to ``TOLERANCE``.

    Peaks grow with the number of nodes, at most as its square; so each probe tells where the next one is best made.
    """
    fits, fails, num_nodes = 1, math.inf, start
    probes: dict[int, int] = {}
    step = 1 + TOLERANCE / 2
    while fails > fits * (1 + TOLERANCE):
        peak = probes[num_nodes] = peak_of(num_nodes)
        guess = num_nodes * math.sqrt(limit_bytes / peak)
        if peak <= limit_bytes:
            fits, guess = num_nodes, guess * step
        else:
            fails, guess = num_nodes, guess / step
        num_nodes = round(min(max(guess, fits * step), fails / step))
    return Limit(fits, probes)


if __name__ == "__main__":
    sys.exit(main("megagraph_limit", measure))
