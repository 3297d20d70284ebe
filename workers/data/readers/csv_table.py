"""CSV by pyarrow, with the number of the file's row kept for every record, so that faults can be named by it.

The format: UTF-8, a header in row 1, commas, one record a row (a quoted value may not run over the end of its row).
Blank rows are skipped; any other deviation is a fault with its row.
"""

import codecs
import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.readers.faults import MOST_SHOWN, FaultList

_BLOCK_BYTES = 16 << 20  # pyarrow needs each record within one block
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The records of one file: a pyarrow ``table``, and the file row (header = 1) of each of them."""

    path: Path
    header: tuple[str, ...]
    records: Any
    rows: np.ndarray  # int64 [records]

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, column: str) -> Any:
        """A text column as a pyarrow array of strings, without the white space around its values."""
        import pyarrow.compute

        return pyarrow.compute.utf8_trim_whitespace(self.records[column].combine_chunks())


def read_table(
    path: Path, *, required: tuple[str, ...], faults: FaultList, only_required: bool = False
) -> CsvTable | None:
    """Read ``path``: the ``required`` columns as text, all others in the type they look like, or not at all.

    Faults of form are noted in ``faults``; None where they leave nothing to go on with.
    """
    header = _read_header(path, required=required, faults=faults)
    if not header or not _is_utf8(path, faults=faults):
        return None
    table = _parse(path, header=header, columns=required if only_required else header, text=required, faults=faults)
    if table is not None and not len(table):
        faults.add(path.name, row=None, text="there is no record below the header")
        return None
    return table


def read_numbers(table: CsvTable, *, columns: tuple[str, ...], faults: FaultList) -> np.ndarray:
    """The ``columns`` as float32 [records, columns]. Cells that are not finite numbers are noted in ``faults``."""
    import pyarrow

    matrix = np.full((len(table), len(columns)), np.nan, dtype=np.float32)
    for place, column in enumerate(columns):
        cells = table.records[column]
        if pyarrow.types.is_integer(cells.type) or pyarrow.types.is_floating(cells.type):
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and so a fault
                matrix[:, place] = cells.to_numpy()
    bad = np.flatnonzero(~np.isfinite(matrix).all(axis=0))
    if len(bad):
        _note_bad_numbers(table, columns=tuple(columns[place] for place in bad[:MOST_SHOWN]), faults=faults)
    return matrix


def _note_bad_numbers(table: CsvTable, *, columns: tuple[str, ...], faults: FaultList) -> None:
    """Read the bad columns again, as text, to tell the bad cells from the good ones and to quote them."""
    import pyarrow
    import pyarrow.compute

    noted_before = FaultList(table.path.parent)  # rows of the wrong length are in ``faults`` since the first parse
    again = _parse(table.path, header=table.header, columns=columns, text=columns, faults=noted_before)
    assert again is not None, "the same file was parsed a moment ago"
    for column in columns:
        texts = again.text(column)
        finite = pyarrow.compute.if_else(pyarrow.compute.match_substring_regex(texts, _NUMBER), texts, "inf")
        sizes = np.abs(np.asarray(pyarrow.compute.cast(finite, pyarrow.float64())))
        faults.add_each(
            table.path.name,
            bad=sizes > np.finfo(np.float32).max,
            rows=again.rows,
            describe=lambda record, column=column, texts=texts: _describe_number(column, texts[record].as_py()),
        )


def _describe_number(column: str, text: str) -> str:
    if not text:
        return f"feature {column!r} is empty; every feature of every node is wanted"
    return f"feature {column!r} is {text[:40]!r}, which is not a finite float32 number"


def _read_header(path: Path, *, required: tuple[str, ...], faults: FaultList) -> tuple[str, ...]:
    """The column names of row 1; empty after noting what is wrong with them."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            names = tuple(name.strip() for name in next(csv.reader(file), ()))
    except csv.Error as error:
        faults.add(path.name, row=1, text=f"is no CSV header ({error})")
        return ()
    missing = [name for name in required if name not in names]
    if missing:
        found = repr(",".join(names)[:100]) if any(names) else "an empty row"
        faults.add(path.name, row=1, text=f"the header must name the columns {', '.join(required)}; found {found}")
        return ()
    unfit = [name for name, count in Counter(names).items() if not name or count > 1]
    if unfit:
        faults.add(path.name, row=1, text=f"every column needs a name of its own; found {unfit[0]!r} empty or twice")
        return ()
    return names


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


def _parse(
    path: Path, *, header: tuple[str, ...], columns: tuple[str, ...], text: tuple[str, ...], faults: FaultList
) -> CsvTable | None:
    """Parse ``columns``, those in ``text`` as strings. Rows of the wrong length are noted and left out."""
    import pyarrow
    import pyarrow.csv

    ragged: dict[int, int] = {}  # file row -> number of values

    def leave_out(row: Any) -> str:
        ragged[row.number] = row.actual_columns
        return "skip"

    num_rows, blank = _count_rows(path)
    if num_rows < 2:
        return CsvTable(path, header, records=None, rows=np.zeros(0, dtype=np.int64))
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
    return CsvTable(path, header, records=records, rows=rows)


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
