"""What replicas report, each for itself, on its way to the driver: numbered entries in a key-value store.

Replicas that outlive each other do not report together: a report of all would wait for one that is gone. Each writes
its entries under its rank, one after the other; who reads takes what has come, in their order, and removes it.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist


class ReportWriter:
    """The reports of the replica of ``rank``, which go on where those of one before it in its place have ended."""

    def __init__(self, store: dist.Store, *, rank: int) -> None:
        self._store, self._rank = store.clone(), rank
        self._number = self._store.add(_counter(rank), 0)

    def write(self, report: Mapping[str, Any]) -> None:
        """Add ``report``, of JSON types. It counts once it is whole."""
        self._store.set(_entry(self._rank, self._number), json.dumps(report))
        self._number = self._store.add(_counter(self._rank), 1)


class ReportReader:
    """The reports of all of ``size`` replicas, each read once."""

    def __init__(self, store: dist.Store, *, size: int) -> None:
        self._store = store.clone()
        self._taken = [0] * size

    def take(self) -> list[dict[str, Any]]:
        """What has been reported since the last call, of each rank in its order."""
        reports = []
        for rank, taken in enumerate(self._taken):
            self._taken[rank] = self._store.add(_counter(rank), 0)
            for number in range(taken, self._taken[rank]):
                reports.append(json.loads(self._store.get(_entry(rank, number))))
                self._store.delete_key(_entry(rank, number))
        return reports


def _counter(rank: int) -> str:
    return f"reports/{rank}"


def _entry(rank: int, number: int) -> str:
    return f"report/{rank}/{number}"
