"""FastGCN and LADIES with flat importance and debiased weights ("+f+d"): ours against a plain NumPy and SciPy loop.

A GCN of two layers, hidden size 128, 512 nodes drawn per hop, 20,480 seeds in mini-batches of 512, no dropout, Adam, on
a generated graph whose classes can be learned (200,000 nodes, 16 classes, 100 features). The loop (``paper_loop``) is
what papers' own code does for every mini-batch. Both sides train the same function: their accuracies after equally
many epochs, on all other nodes and with all neighbours, must agree. Each side runs with the threads, loader workers and
overlap that were fastest for it in a round of trials, and then in turn.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.frame import Outcome, alternate, main, medians
from tests.benchmarks.mqgnn_epoch import write
from tests.benchmarks.side_process import SideProcess, fastest
from tests.workers.mqgnn.graphs import clustered_graph
from workers.data.graph import Graph

RULES = ("ladies", "fastgcn")
BATCH_SIZE, NUM_BATCHES, SIZES = 512, 40, (512, 512)
EPOCHS, ROUNDS = 3, 3
SPEEDUP_BAR = 10.0
# Points between the sides after ``EPOCHS``: each side's own spread over seeds was about 0.2 points.
ACCURACY_BAR = 1.0


def paper_graph(num_nodes: int = 200_000) -> Graph:
    """Three neighbours in four share the class."""
    return clustered_graph(num_nodes, num_classes=16, num_features=100, degree=80, noise=0.02)


def ways(side: str, rule: str) -> list[dict[str, Any]]:
    """All ways of running a side that are tried before anything counts."""
    if side == "ours":
        common = {
            "model": "gcn",
            "sampler": f"{rule}+f+d",
            "fanouts": SIZES,
            "batch_size": BATCH_SIZE,
            "num_batches": NUM_BATCHES,
        }
        forms = [{"threads": threads, "pipelined": pipelined} for threads in (1, 2) for pipelined in (False, True)]
    else:
        common = {"rule": rule, "sizes": SIZES, "num_batches": NUM_BATCHES}
        forms = [{"threads": t, "workers": w} for t, w in ((2, 0), (1, 1), (2, 1), (1, 2))]
    return [common | form for form in forms]


def run_rule(rule: str, processes: dict[str, SideProcess]) -> tuple[float, float, dict[str, Any]]:
    """(speedup, points of accuracy between the sides, what explains them)."""
    quarter = {"num_batches": NUM_BATCHES // 4}
    chosen = {
        side: fastest(ways(side, rule), lambda way, side=side: float(processes[side].ask(way | quarter)["seconds"]))
        for side in processes
    }
    found = alternate(
        {side: lambda side=side: float(processes[side].ask(chosen[side])["seconds"]) for side in processes},
        rounds=ROUNDS,
    )
    accuracies = {
        side: 100 * process.ask(chosen[side] | {"epochs": EPOCHS})["accuracy"] for side, process in processes.items()
    }
    seconds = medians(found)
    apart = abs(accuracies["ours"] - accuracies["plain"])
    details = {"ran_as": chosen, "rounds_s": found, "epoch_s": seconds, "accuracies": accuracies}
    return seconds["plain"] / seconds["ours"], apart, details


def measure(rules: Sequence[str]) -> Outcome:
    """Both samplers: the loop's seconds over ours, and accuracies."""
    figures, verdicts, details = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write(paper_graph(), Path(folder))
        modules = {"ours": "our_epoch", "plain": "paper_loop"}
        processes = {
            side: stack.enter_context(SideProcess([sys.executable, "-m", f"tests.benchmarks.{module}", folder]))
            for side, module in modules.items()
        }
        for rule in rules:
            figures[rule], figures[f"{rule}_accuracy_apart"], details[rule] = run_rule(rule, processes)
            verdicts[rule] = figures[rule] >= SPEEDUP_BAR
            verdicts[f"{rule}_accuracy_apart"] = figures[f"{rule}_accuracy_apart"] <= ACCURACY_BAR
    return Outcome(figures, verdicts, details)


if __name__ == "__main__":
    sys.exit(main("mqgnn_paper", measure, parts=RULES))
