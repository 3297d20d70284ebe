"""Seconds of a training step on two cores: ours on two ranks, by the best plan, against the dense model in one process.

Each side is first tried in all its ways: ours with a ring and with heads shared out, dense in two forms on one and on
two threads. The best of each then take turns.
"""

import sys

from tests.benchmarks.frame import Outcome, alternate, main, medians
from tests.benchmarks.megagraph_sides import Side, Size, dense_sides, measure_side
from tests.kit.gloo_pool import GlooPool

ROUNDS = 5
SPEEDUP_BAR = 6.0
OURS = {exchange: Side(2, exchange=exchange) for exchange in ("ring", "ulysses")}
DENSE = {
    f"dense {form}, {num_threads} threads": side
    for num_threads in (1, 2)
    for form, side in dense_sides(1, num_threads=num_threads).items()
}


def measure() -> Outcome:
    """Ours and dense in turn, medians of five."""
    with GlooPool(2) as pool:
        return compare_speed(pool, Size(), rounds=ROUNDS)


def compare_speed(pool: GlooPool, size: Size, *, rounds: int) -> Outcome:
    """``measure`` for a graph and model of any size."""

    def step_s(side: Side) -> float:
        return measure_side(pool, side, size, num_steps=2).step_s

    tried_s = {name: step_s(side) for name, side in (OURS | DENSE).items()}
    best = {"ours": min(OURS, key=tried_s.__getitem__), "dense": min(DENSE, key=tried_s.__getitem__)}
    print(f"tried: {tried_s}", flush=True)
    clocks = {name: lambda way=way: step_s((OURS | DENSE)[way]) for name, way in best.items()}
    steps_s = alternate(clocks, rounds=rounds)
    middle = medians(steps_s)
    speedup = middle["dense"] / middle["ours"]
    return Outcome(
        figures={"speedup": speedup},
        verdicts={"speedup": speedup >= SPEEDUP_BAR},
        details={"best": best, "step_s": steps_s, "tried_s": tried_s},
    )


if __name__ == "__main__":
    sys.exit(main("megagraph_speed", measure))
