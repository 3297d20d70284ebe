"""Epoch time of sampled GNNs: ours on both cores against PyG as documented, and against PyG tuned by an expert.

20,480 seeds in mini-batches of 1,024, hidden size 128, no dropout, Adam; a generated power-law graph (200,000 nodes,
3 million edges, 100 features, 47 classes), WordNet3 with its sparse features, and Tolokers. Ours is what a job runs:
the stages, kernels and step of ``workers.mqgnn``. PyG's two sides (``peer_epoch``) run in the environment that
``make bench-peers`` builds. Each side runs in a process of its own, in turn, with the threads, loader workers, overlap
and layout that were fastest for it in a round of trials before. ``--only`` names some of the cases.
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.frame import Outcome, main, medians
from tests.benchmarks.power_law_graph import power_law_edges
from tests.benchmarks.side_process import SideProcess, fastest
from workers.data.datasets import load_dataset
from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.graph import TRAIN, Graph
from workers.data.paths import DataPaths
from workers.spec import DatasetSpec

PEERS = Path(".venv-peers/bin/python")
NUM_SEEDS, BATCH_SIZE, NUM_CLASSES, NUM_FEATURES = 20_480, 1024, 47, 100
DATA = DataPaths(root=Path("../shared/data"), cache=Path(tempfile.gettempdir()) / "mqgnn-epoch-cache")


@dataclass(frozen=True)
class Case:
    """One comparison; ``num_batches`` mini-batches stand for an epoch where a whole one would take minutes."""

    graph: str
    model: str
    fanouts: tuple[int, ...] = (10, 5)
    num_batches: int = NUM_SEEDS // BATCH_SIZE
    rounds: int = 3
    bar: float | None = None
    bar_tuned: float | None = None


CASES = {
    "sage": Case("power-law", "graphsage", bar=12, bar_tuned=5),
    "gin": Case("power-law", "gin", bar=10, bar_tuned=4),
    "gat": Case("power-law", "gat", bar=11, bar_tuned=4.5),
    "appnp": Case("power-law", "appnp", bar=3),
    "sage_3hop": Case("power-law", "graphsage", (15, 10, 5), num_batches=4, rounds=3, bar=20),
    "sage_wordnet": Case("WordNet3", "graphsage", num_batches=4, rounds=3, bar=50),
    "sage_tolokers": Case("Tolokers", "graphsage", num_batches=5),
}


def ways(side: str, case: Case) -> list[dict[str, Any]]:
    """All ways of running a side that are tried before anything counts."""
    common = {"side": side, "model": case.model, "fanouts": list(case.fanouts), "num_batches": case.num_batches}
    if side == "ours":
        forms = [
            {"threads": 2, "pipelined": False},
            {"threads": 1, "pipelined": True},
            {"threads": 2, "pipelined": True},
        ]
    else:
        layouts = ("index", "sparse") if side == "tuned" and case.model != "gat" else ("index",)
        forms = [
            {"threads": threads, "workers": workers, "layout": layout}
            for layout in layouts
            for threads, workers in ((2, 0), (1, 1), (1, 2), (2, 1), (2, 2))
        ]
    return [common | form for form in forms]


def run_case(case: Case, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """(median seconds of each side, what they ran as and every round)."""
    names = ["ours", "default", *(["tuned"] if case.model != "appnp" else [])]
    with ExitStack() as stack:
        commands = {
            "ours": [sys.executable, "-m", "tests.benchmarks.our_epoch", str(folder)],
            "peer": [str(PEERS), "-m", "tests.benchmarks.peer_epoch", str(folder)],
        }
        processes = {name: stack.enter_context(SideProcess(command)) for name, command in commands.items()}

        def epoch_s(way: dict[str, Any]) -> float:
            return float(processes["ours" if way["side"] == "ours" else "peer"].ask(way)["seconds"])

        short = {"num_batches": max(2, case.num_batches // 4)}
        chosen = {name: fastest(ways(name, case), lambda way: epoch_s(way | short)) for name in names}
        found: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(case.rounds):
            for name in names:
                found[name].append(epoch_s(chosen[name]))
                print(f"{case.graph} {case.model}: {name} {found[name][-1]:.4g} s", flush=True)
    scale = NUM_SEEDS / BATCH_SIZE / case.num_batches
    details = {"ran_as": chosen, "rounds_s": found, "epoch_s": {k: v * scale for k, v in medians(found).items()}}
    return medians(found), details


def measure(names: Sequence[str]) -> Outcome:
    """Every case: seconds per epoch of ours, PyG's default and PyG tuned, in turn."""
    if not PEERS.exists():
        raise SystemExit(f"{PEERS} is not there: run `make bench-peers` first")
    figures, verdicts, details = {}, {}, {}
    for name in names:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            write(graph_of(case.graph), Path(folder))
            seconds, details[name] = run_case(case, Path(folder))
        figures[name] = seconds["default"] / seconds["ours"]
        if case.bar is not None:
            verdicts[name] = figures[name] >= case.bar
        if "tuned" in seconds:
            figures[f"{name}_vs_tuned"] = seconds["tuned"] / seconds["ours"]
            if case.bar_tuned is not None:
                verdicts[f"{name}_vs_tuned"] = figures[f"{name}_vs_tuned"] >= case.bar_tuned
    return Outcome(figures=figures, verdicts=verdicts, details=details)


def graph_of(name: str) -> Graph:
    """The graph of a case."""
    if name != "power-law":
        return load_dataset(DatasetSpec(name=name), paths=DATA).graphs[0]
    indptr, indices = power_law_edges()
    rng, num_nodes = np.random.default_rng(1), len(indptr) - 1
    return Graph(
        indptr=indptr,
        indices=indices,
        features=DenseFeatures(rng.standard_normal((num_nodes, NUM_FEATURES)).astype(np.float32)),
        y=rng.integers(NUM_CLASSES, size=num_nodes),
        split=np.full(num_nodes, TRAIN, dtype=np.int8),
    )


def write(graph: Graph, folder: Path) -> None:
    """What both sides read: CSC, features (dense, or CSR), labels, seeds."""
    seeds = np.random.default_rng(2).permutation((graph.split == TRAIN).nonzero()[0])[:NUM_SEEDS]
    features = graph.features
    if isinstance(features, SparseFeatures):
        arrays = {"begins": features.indptr, "columns": features.columns, "values": features.values}
        arrays["num_features"] = np.array(features.num_features)
    else:
        arrays = {"x": features.gather(np.arange(graph.num_nodes))}
    np.savez(
        folder / "graph.npz",
        indptr=graph.indptr,
        indices=graph.indices.astype(np.int64),
        y=graph.y,
        seeds=seeds,
        **arrays,
    )


if __name__ == "__main__":
    sys.exit(main("mqgnn_epoch", measure, parts=tuple(CASES)))
