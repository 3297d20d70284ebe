"""The tables of a user's own data, CSV or Parquet: columns by name, and the row of every record to name faults by."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.readers.faults import MOST_SHOWN, FaultList

NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """The records of one file: a pyarrow table, and the file row of each of them.

    ``as_written`` gives columns as the text that stands in the file, to quote from, without faults of its own.
    """

    path: Path
    header: tuple[str, ...]
    records: Any
    rows: np.ndarray  # int64 [records]; CSV counts lines of the file, Parquet records from 1
    as_written: Callable[[tuple[str, ...]], Any]

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, column: str) -> Any:
        """A text column as a pyarrow array of strings, without the white space around its values."""
        import pyarrow.compute

        return pyarrow.compute.utf8_trim_whitespace(self.records[column].combine_chunks())


@dataclass(frozen=True)
class Wanted:
    """What is asked of a table: columns that it must have, and those that are read as text wherever they are."""

    required: tuple[str, ...]
    also_text: tuple[str, ...] = ()
    only_required: bool = False  # leave all other columns alone

    def text_of(self, header: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of ``header`` to read as text."""
        return tuple(name for name in header if name in self.required or name in self.also_text)

    def columns_of(self, header: tuple[str, ...]) -> tuple[str, ...]:
        """The columns of ``header`` to read."""
        return self.required if self.only_required else header


def check_header(path: Path, *, names: tuple[str, ...], required: tuple[str, ...], faults: FaultList) -> bool:
    """Whether ``names`` hold the ``required`` columns, each once; what is wrong is noted, for a CSV in its row 1."""
    row = 1 if path.suffix == ".csv" else None
    missing = [name for name in required if name not in names]
    if missing:
        found = repr(",".join(names)[:100]) if any(names) else "an empty row"
        faults.add(path.name, row=row, text=f"the header must name the columns {', '.join(required)}; found {found}")
        return False
    unfit = [name for name, count in Counter(names).items() if not name or count > 1]
    if unfit:
        faults.add(path.name, row=row, text=f"every column needs a name of its own; found {unfit[0]!r} empty or twice")
        return False
    return True


def read_numbers(
    table: Table,
    *,
    columns: tuple[str, ...],
    faults: FaultList,
    what: str = "feature",
    absent: np.ndarray | None = None,
) -> np.ndarray:
    """The ``columns`` as float32 [records, columns]. Cells that are not finite numbers are noted in ``faults``.

    Cells that are True in ``absent``, of the same shape, may be empty, and are 0 then.
    """
    import pyarrow

    matrix = np.full((len(table), len(columns)), np.nan, dtype=np.float32)
    for place, column in enumerate(columns):
        cells = table.records[column]
        if pyarrow.types.is_integer(cells.type) or pyarrow.types.is_floating(cells.type):
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and so a fault
                matrix[:, place] = cells.to_numpy()
    if absent is not None:
        matrix[absent] = 0
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=0))
    if len(bad):
        places = bad[:MOST_SHOWN]
        texts = table.as_written(tuple(columns[place] for place in places))
        for place in places:
            wanted = np.ones(len(table), dtype=bool) if absent is None else ~absent[:, place]
            name = f"{what} {columns[place]!r}"
            _note_bad_numbers(table, texts[columns[place]], name=name, wanted=wanted, faults=faults)
    return matrix


def _note_bad_numbers(table: Table, texts: Any, *, name: str, wanted: np.ndarray, faults: FaultList) -> None:
    """Tell the bad cells from the good ones by their text, and quote them."""
    import pyarrow
    import pyarrow.compute

    texts = pyarrow.compute.utf8_trim_whitespace(texts.combine_chunks())
    finite = pyarrow.compute.if_else(pyarrow.compute.match_substring_regex(texts, NUMBER), texts, "inf")
    sizes = np.abs(np.asarray(pyarrow.compute.cast(finite, pyarrow.float64())))
    faults.add_each(
        table.path.name,
        bad=wanted & (sizes > np.finfo(np.float32).max),
        rows=table.rows,
        describe=lambda record: _describe_number(name, texts[record].as_py()),
    )


def _describe_number(name: str, text: str) -> str:
    if not text:
        return f"{name} is empty; every record needs one"
    return f"{name} is {text[:40]!r}, which is not a finite float32 number"
