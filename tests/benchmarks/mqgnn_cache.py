"""Features held by another node, on a link of 1 Gbit/s: seconds and bytes of an epoch with caches and without.

Holder and trainer are two network namespaces, a core each. The trainer samples GraphSAGE's neighbourhoods on the graph
of ``mqgnn_epoch`` in a pipeline of stages; sides take turns, epoch by epoch, in one process. The budget of the caches
is what the planner gives by default, from the peak that a job without them was seen to have; peaks are those of fresh
processes over two epochs and an evaluation. Bytes are counted by the link.

Accuracy is that of GraphSAGE on Photo with the same rule, which makes as large a part of the rows hot, against no
caches: ten seeds, each on both sides.

    python -m tests.benchmarks.mqgnn_cache [--json] [--only link accuracy]

The part ``link`` needs root, for the namespaces.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from planner.caching import CACHE_MEMORY_FRACTION, NO_CACHE, CacheRule
from tests.benchmarks.frame import Outcome, main
from tests.conftest import find_data_root
from tests.kit.netns import Namespace, namespaces
from tests.kit.rank_runs import sampled_run
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec

RATE = "1gbit"
ROUNDS = 5
OFF: dict[str, Any] = {"feature_bytes": 0, "subgraph_bytes": 0}
RULE: dict[str, Any] = {"prefer": 4.0, "reuse": 2}
BARS = {"speedup": 1.3, "bytes_ratio": 0.5, "memory_extra": 0.10, "accuracy_delta": 0.3}  # the last in points
NUM_SEEDS, EPOCHS, FANOUTS = 10, 20, (10, 5)
HOT_SHARE = 0.16  # of all rows, as the budget of ``link`` comes to
T_95 = 2.262  # Student's t for nine degrees of freedom: 95 % between ± so many standard errors


class Process:
    """One part of the benchmark in its namespace, on a core of its own."""

    def __init__(self, space: Namespace, *, core: int, **settings: Any) -> None:
        words = ("taskset", "-c", str(core), sys.executable, "-m", "tests.benchmarks.mqgnn_cache_rank")
        self._process = subprocess.Popen(
            space.command(*words, json.dumps(settings)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said = self._answer()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request."""
        assert self._process.stdin
        print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"the process has ended with code {self._process.wait()}"
        return json.loads(line)


@contextmanager
def trainer(spaces: list[Namespace], held: dict[str, Any]) -> Iterator[Process]:
    """A fresh trainer beside the holder that ``held`` tells of."""
    place = {"part": "trainer", "address": spaces[0].address, "interface": f"{spaces[1].link}i"}
    process = Process(spaces[1], core=cores()[0], **place, **held)
    try:
        yield process
    finally:
        process.close()


def cores() -> list[int]:
    """The first and the last core of this process."""
    found = sorted(os.sched_getaffinity(0))
    return [found[0], found[-1]]


def measure(parts: Sequence[str]) -> Outcome:
    """The parts that are asked for: epochs over the link, accuracy with caches and without."""
    figures: dict[str, float] = {}
    details: dict[str, Any] = {"rule": RULE}
    for part in parts:
        found, seen = {"link": compare_epochs, "accuracy": compare_accuracy}[part]()
        figures |= found
        details[part] = seen
    verdicts = {
        name: figures[name] >= bar if name == "speedup" else figures[name] <= bar
        for name, bar in BARS.items()
        if name in figures
    }
    return Outcome(figures, verdicts, details)


def compare_epochs() -> tuple[dict[str, float], dict[str, Any]]:
    """Peaks of both sides, then epochs in turn: (figures, what was seen)."""
    with namespaces(2, rate=RATE) as spaces:
        holder = Process(spaces[0], core=cores()[1], part="holder", address=spaces[0].address)
        try:
            with trainer(spaces, holder.said) as alone:
                peak_off = alone.ask("peak", rule=OFF)["peak_bytes"]
            settled = CacheRule(**RULE).settle(budget_bytes=int(CACHE_MEMORY_FRACTION * peak_off), features="remote")
            on = settled.model_dump()
            with trainer(spaces, holder.said) as alone:
                peak_on = alone.ask("peak", rule=on)["peak_bytes"]
            print(f"peaks: {peak_off / 2**20:.0f} MiB without, {peak_on / 2**20:.0f} MiB with {on}", flush=True)
            with trainer(spaces, holder.said) as both:
                opened = {side: both.ask("open", side=side, rule=rule) for side, rule in (("off", OFF), ("on", on))}
                seen: dict[str, list[dict[str, Any]]] = {"off": [], "on": []}
                for turn in range(1, ROUNDS + 1):
                    for side, epochs in seen.items():
                        epochs.append(both.ask("epoch", side=side))
                        print(f"round {turn} of {ROUNDS}: {side} {epochs[-1]}", flush=True)
        finally:
            holder.close()
    median = {
        side: {name: statistics.median(epoch[name] for epoch in epochs) for name in ("seconds", "bytes")}
        for side, epochs in seen.items()
    }
    figures = {
        "speedup": median["off"]["seconds"] / median["on"]["seconds"],
        "bytes_ratio": median["on"]["bytes"] / median["off"]["bytes"],
        "memory_extra": peak_on / peak_off - 1,
    }
    peaks = {"off": peak_off, "on": peak_on}
    return figures, {"rate": RATE, "settled": on, "peak_bytes": peaks, "opened": opened, "epochs": seen}


def compare_accuracy() -> tuple[dict[str, float], dict[str, Any]]:
    """Test accuracies on Photo at the best validation score, the same seeds on both sides: (figures, what was seen)."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = DatasetSpec(name="Photo")
        (graph,) = load_dataset(dataset, paths=DataPaths(root=find_data_root(), cache=Path(folder) / "cache")).graphs
        rows = int(HOT_SHARE * graph.num_nodes)
        matrix_bytes = sum(array.nbytes for array in graph.features.arrays().values())
        budget = 4 * graph.num_nodes + -(-rows * matrix_bytes // graph.num_nodes)
        rules = {"off": NO_CACHE, "on": CacheRule(**RULE, feature_bytes=budget, subgraph_bytes=2**30)}
        scores: dict[str, list[float]] = {"off": [], "on": []}
        for seed in range(NUM_SEEDS):
            for side, rule in rules.items():
                job = Path(folder) / f"{side}-{seed}"
                scores[side].append(100 * train_once(dataset, rule, seed=seed, folder=Path(folder), job=job))
            print(
                f"seed {seed}: " + ", ".join(f"{side} {values[-1]:.2f}" for side, values in scores.items()), flush=True
            )
    deltas = [on - off for on, off in zip(scores["on"], scores["off"], strict=True)]
    mean, half = statistics.mean(deltas), T_95 * statistics.stdev(deltas) / math.sqrt(len(deltas))
    seen = {"scores": scores, "hot_rows": rows, "interval": [mean - half, mean + half]}
    return {"accuracy_delta": abs(mean), "accuracy_delta_half_width": half}, seen


def train_once(dataset: DatasetSpec, rule: CacheRule, *, seed: int, folder: Path, job: Path) -> float:
    """Test accuracy of one run by the runtime's own ``train``, on one rank, which holds all rows."""
    training = TrainingSpec(
        epochs=EPOCHS,
        batch_size=512,
        learning_rate=0.01,
        weight_decay=0.0,
        seed=seed,
        eval_every_epochs=2,
        checkpoint_every_epochs=EPOCHS,
        features="remote",
        cache=rule,
    )
    model = SampledGNNSpec(name="graphsage", fanouts=FANOUTS)
    run = sampled_run(
        TrainSpec(kind="mqgnn", dataset=dataset, model=model, training=training),
        job_dir=job,
        data=DataPaths(root=find_data_root(), cache=folder / "cache"),
        queues=(),
        pipelined=False,
        features="remote",
        cache=rule,
        report_every_steps=sys.maxsize,
    )
    return train(run)["test_accuracy"]


if __name__ == "__main__":
    sys.exit(main("mqgnn_cache", measure, parts=("link", "accuracy")))
