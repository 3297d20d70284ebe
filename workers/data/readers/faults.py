"""Faults in a user's files, gathered so that one message tells the first ten, each by file and row."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from workers.errors import DatasetInvalidError

MOST_SHOWN = 10


class Fault(NamedTuple):
    """Of a CSV row 1 is the header, as editors count; of Parquet, the first record. None: the file as a whole."""

    file: str
    row: int | None
    text: str


class FaultList:
    """Collects faults until there are ``MOST_SHOWN``; what comes later is dropped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: list[Fault] = []

    @property
    def is_full(self) -> bool:
        """Whether looking for more is of no use."""
        return len(self.faults) >= MOST_SHOWN

    def add(self, file: str, *, row: int | None, text: str) -> None:
        """One fault."""
        if not self.is_full:
            self.faults.append(Fault(file, row, text))

    def add_each(self, file: str, *, bad: np.ndarray, rows: np.ndarray, describe: Callable[[int], str]) -> None:
        """One fault for every True of ``bad``, at file row ``rows[record]``, said by ``describe(record)``."""
        for record in np.flatnonzero(bad)[: MOST_SHOWN - len(self.faults)].tolist():
            self.add(file, row=int(rows[record]), text=describe(record))

    def raise_if_any(self) -> None:
        """Raise one ``DatasetInvalidError`` with all that was found; ``details['faults']`` has the same as data."""
        if not self.faults:
            return
        files = list(dict.fromkeys(fault.file for fault in self.faults))
        faults = sorted(self.faults, key=lambda fault: (files.index(fault.file), fault.row or 0))
        lines = [f"  {fault.file}{f', row {fault.row}' if fault.row else ''}: {fault.text}" for fault in faults]
        is_csv = all(Path(file).suffix != ".parquet" for file in files)
        first = "row 1 is the header" if is_csv else "of a Parquet file row 1 is the first record"
        more = f"; looked no further than {MOST_SHOWN}" if self.is_full else ""
        raise DatasetInvalidError(
            f"faults in {self.folder} ({first}{more}):\n" + "\n".join(lines),
            path=str(self.folder),
            faults=[fault._asdict() for fault in faults],
        )
