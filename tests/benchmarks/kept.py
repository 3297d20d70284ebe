"""Results of long benchmarks by what was run, kept in a file of JSON lines where there is one, by one state of code."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parse_store(parser: argparse.ArgumentParser | None = None) -> tuple[argparse.Namespace, list[str]]:
    """``--store FILE`` and what else ``parser`` knows, from the command line; then what it leaves to the frame."""
    parser = parser or argparse.ArgumentParser(add_help=False)
    parser.add_argument("--store", type=Path, default=None)
    return parser.parse_known_args()


class Kept:
    """Results in JSON types, by keys in JSON types. Made anew from the same file, it goes on where the last ended."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: dict[str, Any] = {}
        if path is not None and path.exists():
            lines = map(json.loads, path.read_text().splitlines())
            self._results = {json.dumps(key): result for key, result in lines}

    def get(self, key: Any, *, make: Callable[[], Any]) -> Any:
        """What is known of ``key``; where nothing is, what ``make()`` gives."""
        name = json.dumps(key)
        if name not in self._results:
            self._results[name] = make()
            if self._path is not None:
                with self._path.open("a") as file:
                    print(json.dumps([key, self._results[name]]), file=file)
        return self._results[name]
