"""Features held by another node, on a link of 1 Gbit/s: seconds and bytes of an epoch with caches and without.

Holder and trainer are two network namespaces, a core each. The trainer samples GraphSAGE's neighbourhoods on the graph
of ``mqgnn_epoch`` in a pipeline of stages; sides take turns, epoch by epoch, in one process. The budget of the caches
is what the planner gives by default, from the peak that a job without them was seen to have; peaks are those of fresh
processes over two epochs and an evaluation. Bytes are counted by the link.

``python -m tests.benchmarks.mqgnn_cache --json``. Needs root, for the namespaces.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner.caching import CACHE_MEMORY_FRACTION
from tests.benchmarks.frame import Outcome, main
from tests.kit.netns import Namespace, namespaces

RATE = "1gbit"
ROUNDS = 5
OFF: dict[str, Any] = {"feature_bytes": 0}
BARS = {"speedup": 1.3, "bytes_ratio": 0.5, "memory_extra": 0.10}


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


def measure() -> Outcome:
    """Peaks of both sides, then epochs in turn."""
    with namespaces(2, rate=RATE) as spaces:
        holder = Process(spaces[0], core=cores()[1], part="holder", address=spaces[0].address)
        try:
            with trainer(spaces, holder.said) as alone:
                peak_off = alone.ask("peak", rule=OFF)["peak_bytes"]
            on = {"feature_bytes": int(CACHE_MEMORY_FRACTION * peak_off)}
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
    verdicts = {
        "speedup": figures["speedup"] >= BARS["speedup"],
        "bytes_ratio": figures["bytes_ratio"] <= BARS["bytes_ratio"],
        "memory_extra": figures["memory_extra"] <= BARS["memory_extra"],
    }
    details = {"rate": RATE, "rule": on, "peak_bytes": {"off": peak_off, "on": peak_on}, "opened": opened}
    return Outcome(figures, verdicts, {**details, "epochs": seen})


if __name__ == "__main__":
    sys.exit(main("mqgnn_cache", measure))
