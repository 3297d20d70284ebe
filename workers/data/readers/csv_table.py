"""CSV by pyarrow, with the number of the file's row kept for every record, so that faults can be named by it.

The format: UTF-8, a header in row 1, commas, one record a row (a quoted value may not run over the end of its row).
Blank rows are skipped; any other deviation is a fault with its row.
"""

import codecs
import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from workers.data.readers.faults import FaultList
from workers.data.readers.tables import Table, Wanted, check_header

_BLOCK_BYTES = 16 << 20  # pyarrow needs each record within one block


def read_csv(path: Path, *, wanted: Wanted, faults: FaultList) -> Table | None:
    """Read ``path``: text as text, all other columns in the type they look like.

    Faults of form are noted in ``faults``; None where they leave nothing to go on with.
    """
    header = _read_header(path, required=wanted.required, faults=faults)
    if not header or not _is_utf8(path, faults=faults):
        return None
    parsed = _parse(path, header=header, columns=wanted.columns_of(header), text=wanted.text_of(header), faults=faults)
    if parsed is None:
        return None

    def as_written(columns: tuple[str, ...]) -> Any:
        noted_before = FaultList(path.parent)  # rows of the wrong length are in ``faults`` since the first parse
        again = _parse(path, header=header, columns=columns, text=columns, faults=noted_before)
        assert again is not None, "the same file was parsed a moment ago"
        return again.records

    return Table(path, header, records=parsed.records, rows=parsed.rows, as_written=as_written)


def _read_header(path: Path, *, required: tuple[str, ...], faults: FaultList) -> tuple[str, ...]:
    """The column names of row 1; empty after noting what is wrong with them."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            names = tuple(name.strip() for name in next(csv.reader(file), ()))
    except csv.Error as error:
        faults.add(path.name, row=1, text=f"is no CSV header ({error})")
        return ()
    return names if check_header(path, names=names, required=required, faults=faults) else ()


def _is_utf8(path: Path, *, faults: FaultList) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    row = 1
    with path.open("rb") as file:
        block = b"\n"
        while block:
            block = file.read(_BLOCK_BYTES)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                row += error.object[: error.start].count(b"\n")
                faults.add(path.name, row=row, text="is not UTF-8 text; save the file as UTF-8")
                return False
            row += block.count(b"\n")
    return True


class _Parsed(NamedTuple):
    """A pyarrow table, and the file row of each of its records."""

    records: Any
    rows: np.ndarray


def _parse(
    path: Path, *, header: tuple[str, ...], columns: tuple[str, ...], text: tuple[str, ...], faults: FaultList
) -> _Parsed | None:
    """Parse ``columns``, those in ``text`` as strings. Rows of the wrong length are noted and left out."""
    import pyarrow
    import pyarrow.csv

    ragged: dict[int, int] = {}  # file row -> number of values

    def leave_out(row: Any) -> str:
        ragged[row.number] = row.actual_columns
        return "skip"

    num_rows, blank = _count_rows(path)
    if num_rows < 2:
        return _Parsed(None, rows=np.zeros(0, dtype=np.int64))
    try:
        records = pyarrow.csv.read_csv(
            path,
            # one thread: only then are rows numbered; blank rows are kept for the same reason, and dropped below
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, block_size=_BLOCK_BYTES, column_names=header, skip_rows=1
            ),
            parse_options=pyarrow.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=leave_out),
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=columns,
                column_types={column: pyarrow.string() for column in text},
                null_values=[""],
                true_values=[],
                false_values=[],
            ),
        )
    except pyarrow.ArrowInvalid as error:
        faults.add(path.name, row=None, text=f"cannot be parsed: {error}")
        return None
    rows = np.delete(np.arange(2, num_rows + 1), np.array(list(ragged), dtype=np.int64) - 2)
    if len(rows) != records.num_rows:
        reason = "a quoted value runs over the end of its row, or rows do not end in line feeds"
        faults.add(path.name, row=_first_open_quote(path), text=reason)
        return None
    for row, found in ragged.items():
        faults.add(path.name, row=row, text=f"has {found} values; the header names {len(header)}")
    if blank:
        keep = ~np.isin(rows, blank)
        records, rows = records.filter(pyarrow.array(keep)), rows[keep]
    return _Parsed(records, rows=rows)


def _count_rows(path: Path) -> tuple[int, list[int]]:
    """Physical rows of the file, and which of them are blank."""
    num_rows = 0
    blank = []
    with path.open("rb") as file:
        for num_rows, line in enumerate(file, start=1):
            if line in (b"\n", b"\r\n"):
                blank.append(num_rows)
    return num_rows, blank


def _first_open_quote(path: Path) -> int | None:
    with path.open("rb") as file:
        return next((row for row, line in enumerate(file, start=1) if line.count(b'"') % 2), None)
