"""The columns of own data's tables: ids, ends of edges, types, weights, times, features; faults noted by file and row.

Which columns mean something is said by their names (``EDGE_WORDS``, ``NODE_WORDS``); all others are features.
"""

from typing import Any, NamedTuple

import numpy as np

from workers.data.edge_columns import EdgeColumns
from workers.data.features import DenseFeatures
from workers.data.graph import NO_TIME
from workers.data.readers.faults import FaultList
from workers.data.readers.tables import Table, Wanted, read_numbers

EDGE_WORDS = ("source", "target", "type", "weight", "time")
NODE_WORDS = ("id", "label", "type", "time")
WANTED_EDGES = Wanted(("source", "target"), also_text=("type", "time"))
MOST_TYPES = 254

_WHOLE_NUMBER = r"^[+-]?\d{1,18}$"


class Types(NamedTuple):
    """A column of types: numbers of ``names``, which are sorted (as numbers where all are)."""

    numbers: np.ndarray | None  # uint8 [records]; None where there is no such column
    names: tuple[str, ...]


class NodeColumns(NamedTuple):
    """What nodes carry beside id, label and features."""

    types: np.ndarray | None  # uint8 [N], numbers of ``type_names``
    times: np.ndarray | None  # int64 [N], NO_TIME where the cell is empty
    type_names: tuple[str, ...]


class EdgeTable(NamedTuple):
    """What the table of edges says of them; ``ends`` are places among the ids of nodes."""

    ends: tuple[np.ndarray, np.ndarray]
    columns: EdgeColumns
    type_names: tuple[str, ...]


def unique_ids(nodes: Table, *, faults: FaultList) -> Any:
    """The id column; empty and repeated ids are noted."""
    import pyarrow.compute

    ids = nodes.text("id")
    empty = np.asarray(pyarrow.compute.equal(ids, ""))
    faults.add_each(nodes.path.name, bad=empty, rows=nodes.rows, describe=lambda _: "the id is empty")
    codes = np.asarray(ids.dictionary_encode().indices)  # numbered in the order of first sight
    first = np.diff(np.maximum.accumulate(codes), prepend=-1) > 0
    first_rows = nodes.rows[first]
    faults.add_each(
        nodes.path.name,
        bad=~first & ~empty,
        rows=nodes.rows,
        describe=lambda record: f"id {ids[record].as_py()!r} was given already in row {first_rows[codes[record]]}",
    )
    return ids


def places_of(table: Table | None, column: str, *, ids: Any, of: Table, faults: FaultList) -> np.ndarray:
    """Place among ``ids`` of every id in ``column``, int64; -1 after noting one that the table ``of`` has not."""
    import pyarrow.compute

    if table is None:
        return np.zeros(0, dtype=np.int64)
    texts = table.text(column)
    places = np.asarray(pyarrow.compute.index_in(texts, value_set=ids).fill_null(-1)).astype(np.int64)
    faults.add_each(
        table.path.name,
        bad=places < 0,
        rows=table.rows,
        describe=lambda record: f"{column} {texts[record].as_py()!r} is not an id of {of.path.name}",
    )
    return places


def read_node_columns(nodes: Table, *, faults: FaultList) -> NodeColumns:
    """Types and times of nodes, where there are such columns."""
    types, names = read_types(nodes, faults=faults)
    times = read_times(nodes, may_be_empty=True, faults=faults) if "time" in nodes.header else None
    return NodeColumns(types, times, names)


def read_edges(edges: Table | None, *, ids: Any, nodes: Table, faults: FaultList) -> EdgeTable:
    """Everything of the table of edges."""
    ends = tuple(places_of(edges, column, ids=ids, of=nodes, faults=faults) for column in ("source", "target"))
    if edges is None:
        return EdgeTable(ends, EdgeColumns(), ())
    types, names = read_types(edges, faults=faults)
    others = tuple(name for name in edges.header if name not in EDGE_WORDS)
    columns = EdgeColumns(
        types=types,
        weights=_read_weights(edges, faults=faults) if "weight" in edges.header else None,
        times=read_times(edges, may_be_empty=False, faults=faults) if "time" in edges.header else None,
        features=read_numbers(edges, columns=others, faults=faults) if others else None,
    )
    return EdgeTable(ends, columns, names)


def read_features(
    nodes: Table, *, besides: tuple[str, ...], faults: FaultList, types: np.ndarray | None = None
) -> DenseFeatures:
    """All columns but those named, of which there may be none, float32; what is no number is noted.

    A column that is empty for every node of one of the ``types`` [N] is no feature of theirs, and counts as 0.
    """
    columns = tuple(name for name in nodes.header if name not in besides)
    absent = None if types is None or not columns else _absent_cells(nodes, columns=columns, types=types)
    return DenseFeatures(read_numbers(nodes, columns=columns, faults=faults, absent=absent))


def _absent_cells(nodes: Table, *, columns: tuple[str, ...], types: np.ndarray) -> np.ndarray:
    empty = np.stack([np.asarray(nodes.records[name].combine_chunks().is_null()) for name in columns], axis=1)
    absent = np.zeros_like(empty)
    for number in np.unique(types):
        rows = types == number
        absent[rows] = empty[rows].all(axis=0)
    return absent & ~empty.all(axis=0)  # what nobody has is a slip of the pen


def read_types(table: Table, *, faults: FaultList) -> Types:
    """The column ``type``, where there is one: any words; empty cells, and too many kinds, are noted."""
    import pyarrow.compute

    if "type" not in table.header:
        return Types(None, ())
    texts = table.text("type")
    faults.add_each(
        table.path.name,
        bad=np.asarray(pyarrow.compute.equal(texts, "")),
        rows=table.rows,
        describe=lambda _: "the type is empty; every record needs one where the column is given",
    )
    encoded = texts.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    names = sorted(words, key=int) if all(word.isdecimal() for word in words) else sorted(words)
    if len(names) > MOST_TYPES:
        text = f"the column type has {len(names)} different words; at most {MOST_TYPES} kinds are told apart"
        faults.add(table.path.name, row=None, text=text)
        names = names[:MOST_TYPES]
    numbers = {name: number for number, name in enumerate(names)}
    of_code = np.array([numbers.get(word, 0) for word in words], dtype=np.uint8)
    return Types(of_code[np.asarray(encoded.indices)], tuple(names))


def read_times(table: Table, *, may_be_empty: bool, faults: FaultList) -> np.ndarray:
    """The column ``time``, int64: whole numbers on any one scale; NO_TIME where a cell may be empty, and is."""
    import pyarrow
    import pyarrow.compute

    texts = table.text("time")
    is_time = pyarrow.compute.match_substring_regex(texts, _WHOLE_NUMBER)
    is_empty = np.asarray(pyarrow.compute.equal(texts, ""))
    faults.add_each(
        table.path.name,
        bad=~(np.asarray(is_time) | (is_empty & may_be_empty)),
        rows=table.rows,
        describe=lambda record: (
            f"time {texts[record].as_py()[:40]!r} is no whole number of at most 18 digits; give years, days or seconds"
            " on one scale"
        ),
    )
    times = np.asarray(pyarrow.compute.cast(pyarrow.compute.if_else(is_time, texts, "0"), pyarrow.int64()))
    return np.where(np.asarray(is_time), times, NO_TIME)


def _read_weights(edges: Table, *, faults: FaultList) -> np.ndarray:
    weights = read_numbers(edges, columns=("weight",), faults=faults, what="column")[:, 0]
    faults.add_each(
        edges.path.name,
        bad=weights < 0,
        rows=edges.rows,
        describe=lambda record: f"weight {weights[record]:g} is negative; weights are 0 (never drawn) or more",
    )
    return weights


def edge_note(edges: Table, *, ends: tuple[np.ndarray, np.ndarray], directed: bool) -> str:
    """What was made of the edges."""
    loops = int((ends[0] == ends[1]).sum())
    way = "directed: all {} edges are kept one way" if directed else "undirected: all {} edges are stored both ways"
    return f"{way.format(len(edges))}, duplicates merged, {loops} self loops left out"
