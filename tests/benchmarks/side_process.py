"""A side of a comparison in a process of its own: a JSON line in asks, a JSON line out answers.

It says ``{"ready": true}`` first, and ends when its input does.
"""

import json
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, Self

READY = {"ready": True}


class SideProcess:
    """Use as a context manager."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == READY

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the side says to ``request``."""
        assert self._process.stdin
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"a side of the benchmark ended with {self._process.wait()}"
        return json.loads(line)


def fastest(ways: list[dict[str, Any]], trial: Callable[[dict[str, Any]], float]) -> dict[str, Any]:
    """The way of running a side whose ``trial`` took least time."""
    seconds = [trial(way) for way in ways]
    return ways[seconds.index(min(seconds))]
