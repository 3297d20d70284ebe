"""Peak memory of a rank in a training step: ours on 1, 2 and 4 ranks against the dense model and against Ulysses.

Graphormer with one table for all blocks, 4,096 nodes. Every side runs in fresh processes; its peak is the highest
resident level of the largest rank over that before model, index and rows were made. Dense sides count in their leaner
form.
"""

import sys
from collections.abc import Callable

from tests.benchmarks.frame import Outcome, main
from tests.benchmarks.megagraph_sides import Side, Size, dense_sides, peak_bytes

ONE_RANK_BAR, FOUR_RANKS_BAR, ULYSSES_BAR = 0.93, 0.96, 0.778


def measure() -> Outcome:
    """Peaks of all sides, and what ours saves of the others'."""
    return compare_memory(Size(), peak_of=peak_bytes)


def compare_memory(size: Size, *, peak_of: Callable[[Side, Size], int]) -> Outcome:
    """``measure`` for a graph and model of any size."""
    sides = {
        **{f"ours, {num_ranks}": Side(num_ranks) for num_ranks in (1, 2, 4)},
        **{f"dense {form}": side for form, side in dense_sides(1).items()},
        **{f"ulysses {form}, 4": side for form, side in dense_sides(4).items()},
    }
    peaks = {}
    for name, side in sides.items():
        peaks[name] = peak_of(side, size)
        print(f"{name}: {peaks[name] / 1e6:.1f} MB", flush=True)
    dense, ulysses = (min(peaks[name] for name in peaks if name.startswith(kind)) for kind in ("dense", "ulysses"))
    figures = {
        "reduction_p1": 1 - peaks["ours, 1"] / dense,
        "reduction_p4": 1 - peaks["ours, 4"] / dense,
        "vs_ulysses_p4": 1 - peaks["ours, 4"] / ulysses,
    }
    bars = {"reduction_p1": ONE_RANK_BAR, "reduction_p4": FOUR_RANKS_BAR, "vs_ulysses_p4": ULYSSES_BAR}
    return Outcome(figures, {name: figures[name] >= bar for name, bar in bars.items()}, {"peak_bytes": peaks})


if __name__ == "__main__":
    sys.exit(main("megagraph_memory", measure))
