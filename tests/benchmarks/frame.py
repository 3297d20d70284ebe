"""The frame of all benchmarks: both sides of a comparison in turn, medians, and one JSON line at the end.

    python -m tests.benchmarks.NAME [--json] [--only PART ...]

The machine drifts by half within minutes, so only sides that alternate (A B A B …) may be compared. The last line that
is printed is ``{"name", "machine", "figures": {FIGURE: number}, "verdicts": {FIGURE: bool}, "details"}``; with
``--json`` nothing else goes to standard output. Exit code 0: all verdicts hold.
"""

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """What a benchmark found: its figures, which of them are good enough, and whatever explains them."""

    figures: Mapping[str, float]
    verdicts: Mapping[str, bool]
    details: Mapping[str, Any] = field(default_factory=dict)


def alternate(sides: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """Run every side once per round, in the order given; all values by side."""
    values: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(1, rounds + 1):
        for name, side in sides.items():
            values[name].append(side())
            print(f"round {turn} of {rounds}: {name} {values[name][-1]:.4g}", flush=True)
    return values


def medians(values: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of every side."""
    return {name: statistics.median(found) for name, found in values.items()}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "ray", "numpy")},
    }


def main(
    name: str, run: Callable[..., Outcome], *, parts: Sequence[str] = (), arguments: list[str] | None = None
) -> int:
    """Run a benchmark from its command line; the exit code. One of ``parts`` is given those that are asked for."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{name}", description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="print nothing but the JSON line")
    if parts:
        parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="some of the parts, by default all")
    options = parser.parse_args(arguments)
    described = machine()
    with _sigterm_unwinds(), contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        outcome = run(options.only) if parts else run()
    line = {
        "name": name,
        "machine": described,
        "figures": dict(outcome.figures),
        "verdicts": dict(outcome.verdicts),
        "details": dict(outcome.details),
    }
    print(json.dumps(line, allow_nan=False), flush=True)
    return 0 if all(outcome.verdicts.values()) else 1


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """A benchmark that is told to end first ends what it started."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
