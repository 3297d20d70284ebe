"""Parquet by pyarrow: the same tables as CSV, with the types that the file has. Rows are records, counted from 1."""

from pathlib import Path
from typing import Any

import numpy as np

from workers.data.readers.faults import FaultList
from workers.data.readers.tables import Table, Wanted, check_header


def read_parquet(path: Path, *, wanted: Wanted, faults: FaultList) -> Table | None:
    """Read ``path``; text columns may be of any type that has a text. None where there is nothing to go on with."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            header = tuple(file.schema_arrow.names)
            if not check_header(path, names=header, required=wanted.required, faults=faults):
                return None
            records = file.read(columns=list(wanted.columns_of(header)))
    except (pyarrow.ArrowException, OSError) as error:
        faults.add(path.name, row=None, text=f"is no Parquet file that can be read: {error}")
        return None
    for name in wanted.text_of(records.column_names):
        if (texts := _texts(cells := records[name])) is None:
            faults.add(path.name, row=None, text=f"column {name!r} is of the type {cells.type}, which has no text")
            return None
        records = records.set_column(records.column_names.index(name), name, texts)

    def as_written(columns: tuple[str, ...]) -> Any:
        # what has no text (lists, structures) is quoted by its type
        found = {name: _text_or_type(records[name]) for name in columns}
        return pyarrow.table(found)

    return Table(path, header, records=records, rows=np.arange(1, len(records) + 1), as_written=as_written)


def _texts(cells: Any) -> Any:
    """``cells`` as text, empty where there is none; None where their type has no text."""
    import pyarrow
    import pyarrow.compute

    try:
        return pyarrow.compute.fill_null(pyarrow.compute.cast(cells, pyarrow.string()), "")
    except pyarrow.ArrowException:
        return None


def _text_or_type(cells: Any) -> Any:
    import pyarrow

    if (texts := _texts(cells)) is not None:
        return texts
    return pyarrow.chunked_array([pyarrow.array([f"of the type {cells.type}"] * len(cells), pyarrow.string())])
