"""RaCoM against synchronous data parallelism and local SGD: seconds to the same validation accuracy over slow links.

Replicas run in network namespaces, one core each, on links of 100 Mbit/s and 1 Gbit/s; on the second, one replica
computes each step three times. The mini-batch is chosen so that an all-reduce at 100 Mbit/s costs about 3.25 times a
step's own work. Synchronous: the faster of PyTorch's own, whose all-reduce overlaps with backward, and ours. Local SGD:
the best of several periods, each tried. RaCoM: one setting, the same everywhere. Sides take turns; nobody evaluates
during a run: agreed weights are kept with their time, and scored after it.

``python -m tests.benchmarks.racom --json``. Needs root, for the namespaces.
"""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.benchmarks.frame import Outcome, main
from tests.kit.netns import Namespace, namespaces

ROUNDS = 3
NUM_STEPS, TARGET = 160, 0.9
MODEL = {"num_nodes": 20_000, "hidden_size": 512, "learning_rate": 0.001}
COST_OVER_COMPUTE, COST_BOUNDS = 3.25, (3.0, 3.5)
SIZES = (96, 256)  # seeds per rank between which a step's own work is taken as a line
PERIODS = (4, 8, 16, 32)
RACOM = {"name": "racom", "staleness": 16, "drift": 0.5, "first_period": 16, "base_period": 8}
STRAGGLER = 3
BARS = {"speedup_100mbit": 2.5, "vs_local_sgd": 0.95, "straggler_vs_local_sgd": 1.3, "speedup_straggler": 1.6}
PORT = 29_417


class Replicas:
    """The processes of one set of namespaces."""

    def __init__(self, spaces: Sequence[Namespace]) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._processes = [
            subprocess.Popen(
                space.command(
                    *(
                        "taskset",
                        "-c",
                        str(cores[rank % len(cores)]),
                        sys.executable,
                        "-m",
                        "tests.benchmarks.racom_rank",
                    ),
                    json.dumps(
                        {
                            **MODEL,
                            "rank": rank,
                            "world_size": len(spaces),
                            "interface": f"{space.link}i",
                            "address": f"tcp://{spaces[0].address}:{PORT}",
                        }
                    ),
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank, space in enumerate(spaces)
        ]
        self._answers()

    def ask(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """What every rank answers to the same request."""
        for process in self._processes:
            assert process.stdin
            print(json.dumps({"do": do, **arguments}), file=process.stdin, flush=True)
        return self._answers()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _answers(self) -> list[dict[str, Any]]:
        lines = []
        for rank, process in enumerate(self._processes):
            assert process.stdout
            line = process.stdout.readline()
            assert line, f"rank {rank} has ended with code {process.wait()}"
            lines.append(json.loads(line))
        return lines


@contextmanager
def replicas(count: int, *, rate: str) -> Iterator[Replicas]:
    """``count`` replicas on links of ``rate``."""
    with namespaces(count, rate=rate) as spaces:
        started = Replicas(spaces)
        try:
            yield started
        finally:
            started.close()


def choose_batch(ranks: Replicas) -> tuple[int, dict[str, float]]:
    """Seeds per rank at which an all-reduce costs ``COST_OVER_COMPUTE`` of a step's own work, and what was measured."""
    found = ranks.ask("calibrate", sizes=list(SIZES))
    allreduce_s = statistics.mean(rank["allreduce_s"] for rank in found)
    small_s, large_s = (statistics.mean(rank["own_s"][str(size)] for rank in found) for size in SIZES)
    per_seed = (large_s - small_s) / (SIZES[1] - SIZES[0])
    size = SIZES[0] + (allreduce_s / COST_OVER_COMPUTE - small_s) / per_seed
    batch = max(16, min(2048, math.floor(size)))
    again = ranks.ask("calibrate", sizes=[batch])
    own_s = statistics.mean(rank["own_s"][str(batch)] for rank in again)
    measured = statistics.mean(rank["allreduce_s"] for rank in again)
    return batch, {
        "allreduce_s": measured,
        "own_s": own_s,
        "allreduce_over_own": measured / own_s,
        "gradient_bytes": found[0]["gradient_bytes"],
        "seeds_per_rank": batch,
    }


def sides_of(ranks: Replicas, *, batch: int, repeats: list[int], num_ranks: int) -> dict[str, dict[str, Any]]:
    """All sides' requests by name; of the two synchronous ones the faster, by a short trial."""
    common = {"batch_size": batch * num_ranks, "num_steps": NUM_STEPS, "repeats": repeats, "target": TARGET}
    both = {
        "ddp": {**common, "rule": {"name": "ddp"}},
        "ddp, overlapped": {**common, "rule": {"name": "ddp"}, "is_overlapped": True},
    }
    trial = {
        name: min(ranks.ask("train", **{**side, "num_steps": 12, "target": 0.0})[0]["step_s"] for _ in range(2))
        for name, side in both.items()
    }
    print(f"steps of the synchronous sides: {trial}", flush=True)
    faster = min(trial, key=trial.__getitem__)
    local = {
        f"local_sgd, {period}": {**common, "rule": {"name": "local_sgd", "first_period": period}} for period in PERIODS
    }
    return {"ddp": both[faster] | {"trial_s": trial}, **local, "racom": {**common, "rule": RACOM}}


def compare(rate: str, *, repeats: list[int], batch: int | None, rounds: int = ROUNDS) -> tuple[dict[str, Any], int]:
    """All sides on links of ``rate``, in turn; the two best periods of local SGD go on after the first round."""
    with replicas(len(repeats), rate=rate) as ranks:
        cost: dict[str, float] = {}
        if batch is None:
            batch, cost = choose_batch(ranks)
            print(f"{rate}: {cost}", flush=True)
        sides = sides_of(ranks, batch=batch, repeats=repeats, num_ranks=len(repeats))
        trial = sides["ddp"].pop("trial_s")
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for turn in range(rounds):
            for name in list(sides):
                answers = ranks.ask("train", **sides[name])
                seen[name].append(
                    answers[0] | {"drift": max(each["figures"]["drift_over_bound_max"] for each in answers)}
                )
                print(f"{rate}, round {turn + 1}: {name} {answers[0]}", flush=True)
            if turn == 0:
                keep_best_local(sides, seen)
    found = {name: summary(runs) for name, runs in seen.items()}
    return {"rate": rate, "repeats": repeats, "cost": cost, "ddp_trial_step_s": trial, "sides": found}, batch


def keep_best_local(sides: dict[str, Any], seen: dict[str, list[dict[str, Any]]]) -> None:
    """Drop the periods of local SGD that were not the best or the second best."""
    local = sorted((name for name in sides if name.startswith("local")), key=lambda name: reached(seen[name][0]))
    for name in local[2:]:
        del sides[name]


def reached(run: dict[str, Any]) -> float:
    """Seconds to the target; infinite where it was not reached."""
    return math.inf if run["reached_s"] is None else run["reached_s"]


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of one side's runs."""
    seconds = statistics.median(map(reached, runs))
    return {
        "reached_s": None if math.isinf(seconds) else seconds,
        "runs": len(runs),
        "step_s": statistics.median(run["step_s"] for run in runs),
        "bytes_sent": statistics.median(run["figures"]["bytes_sent"] for run in runs),
        "drift_over_bound_max": max(run["drift"] for run in runs),
        "last_accuracy": [run["course"][-1][1] for run in runs],
        "figures": runs[-1]["figures"],
    }


def ratios(found: dict[str, Any]) -> tuple[float, float]:
    """(synchronous, best local SGD) over RaCoM, in seconds to the target; 0 where RaCoM never reached it."""
    sides = found["sides"]
    ours = sides["racom"]["reached_s"]
    if ours is None:
        return 0.0, 0.0
    local = [side["reached_s"] for name, side in sides.items() if name.startswith("local") and side["reached_s"]]
    assert sides["ddp"]["reached_s"] is not None, "the synchronous side never reached the target: it is too high"
    return sides["ddp"]["reached_s"] / ours, min(local) / ours


def measure() -> Outcome:
    """Two replicas at 100 Mbit/s, then at 1 Gbit/s with one three times slower; four at 100 Mbit/s in the details."""
    slow_link, batch = compare("100mbit", repeats=[1, 1], batch=None)
    straggler, _ = compare("1gbit", repeats=[1, STRAGGLER], batch=batch)
    four, _ = compare("100mbit", repeats=[1] * 4, batch=max(1, batch // 2), rounds=1)
    speedup, vs_local = ratios(slow_link)
    speedup_straggler, straggler_vs_local = ratios(straggler)
    drift = max(found["sides"]["racom"]["drift_over_bound_max"] for found in (slow_link, straggler))
    cost = slow_link["cost"]
    limit = min(slow_link["ddp_trial_step_s"].values()) / cost["own_s"]
    print(f"limit of speedup_100mbit, by how much the synchronous side overlaps: {limit:.2f}", flush=True)
    figures = {
        "speedup_100mbit": speedup,
        "vs_local_sgd": vs_local,
        "straggler_vs_local_sgd": straggler_vs_local,
        "speedup_straggler": speedup_straggler,
        "drift_over_bound_max": drift,
        "allreduce_over_own": cost["allreduce_over_own"],
        "limit_100mbit": limit,
    }
    verdicts = {name: figures[name] >= bar for name, bar in BARS.items()} | {
        "drift_over_bound_max": drift <= 1 + 1e-5,  # norms in float32
        "allreduce_over_own": COST_BOUNDS[0] <= cost["allreduce_over_own"] <= COST_BOUNDS[1],
    }
    return Outcome(figures, verdicts, {"target": TARGET, "slow link": slow_link, "straggler": straggler, "four": four})


if __name__ == "__main__":
    sys.exit(main("racom", measure))
