"""The label column of a user's nodes or graphs: class numbers without a gap, or words; never a mixture.

Graphs may also carry numbers to predict: where every label is a number and some is no whole one, it is a regression.
"""

from typing import NamedTuple

import numpy as np

from workers.data.graph import NO_LABEL, Task
from workers.data.readers.faults import FaultList
from workers.data.readers.tables import NUMBER, Table

_CLASS_NUMBER = r"^[+-]?\d{1,9}(\.0*)?$"  # "3", and "3.0" as spreadsheets and pandas write it


class Labels(NamedTuple):
    """``y`` as ``workers.data.graph.Graph`` has it (an empty cell, or class -1, is not known).

    ``class_names`` are empty for class numbers.
    """

    y: np.ndarray
    num_classes: int
    class_names: tuple[str, ...]
    task: Task = "classes"


def read_targets(graphs: Table, *, faults: FaultList) -> Labels:
    """Classes as ``read_labels``, or one number to predict per record."""
    import pyarrow.compute

    texts = graphs.text("label")
    known = np.asarray(pyarrow.compute.not_equal(texts, ""))
    is_number, is_class = (
        np.asarray(pyarrow.compute.match_substring_regex(texts, pattern)) for pattern in (NUMBER, _CLASS_NUMBER)
    )
    if not is_number[known].all() or is_class[known].all():
        return read_labels(graphs, faults=faults)
    numbers = pyarrow.compute.cast(pyarrow.compute.if_else(known, texts, "nan"), pyarrow.float64())
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and so a fault
        y = np.asarray(numbers).astype(np.float32).reshape(-1, 1)
    faults.add_each(
        graphs.path.name,
        bad=np.isinf(y[:, 0]),
        rows=graphs.rows,
        describe=lambda record: f"label {texts[record].as_py()!r} is too large for float32",
    )
    return Labels(y, 1, (), "regression")


def read_labels(nodes: Table, *, faults: FaultList) -> Labels:
    """Labels of all records; what cannot be a class is noted in ``faults``."""
    import pyarrow.compute

    texts = nodes.text("label")
    known = np.asarray(pyarrow.compute.not_equal(texts, ""))
    is_number = np.asarray(pyarrow.compute.match_substring_regex(texts, _CLASS_NUMBER)) & known
    if not is_number.any():
        return _words(nodes, texts=texts, known=known, faults=faults)
    mixed = known & ~is_number
    if mixed.any():
        number_row = int(nodes.rows[np.flatnonzero(is_number)[0]])
        faults.add_each(
            nodes.path.name,
            bad=mixed,
            rows=nodes.rows,
            describe=lambda record: (
                f"label {texts[record].as_py()!r} is not a class number, while row {number_row} has one;"
                " use numbers everywhere or words everywhere"
            ),
        )
    digits = pyarrow.compute.if_else(is_number, texts, str(NO_LABEL))
    y = np.asarray(pyarrow.compute.cast(digits, pyarrow.float64())).astype(np.int64)
    return _numbers(nodes, y=y, faults=faults)


def _words(nodes: Table, *, texts: object, known: np.ndarray, faults: FaultList) -> Labels:
    import pyarrow.compute

    encoded = pyarrow.compute.dictionary_encode(texts)
    words = np.array(encoded.dictionary.to_pylist(), dtype=object)
    class_names = tuple(sorted(word for word in words if word))
    numbers = {word: number for number, word in enumerate(class_names)}
    of_code = np.array([numbers.get(word, NO_LABEL) for word in words], dtype=np.int64)
    y = np.where(known, of_code[np.asarray(encoded.indices)], NO_LABEL)
    _check_two_classes(nodes, num_classes=len(class_names), faults=faults)
    return Labels(y, len(class_names), class_names)


def _numbers(nodes: Table, *, y: np.ndarray, faults: FaultList) -> Labels:
    """Numbers must be 0..C-1 and each must occur: a gap is more often a slip of the pen than an empty class."""
    present = np.unique(y[y >= 0])
    gaps = np.flatnonzero(present != np.arange(len(present)))
    num_classes = int(gaps[0]) if len(gaps) else len(present)
    faults.add_each(
        nodes.path.name,
        bad=(y < NO_LABEL) | (y >= num_classes),
        rows=nodes.rows,
        describe=lambda record: (
            f"label {y[record]} is outside the classes 0..{num_classes - 1}: no node has the label {num_classes};"
            " number the classes 0..C-1 without a gap, or use words"
            if y[record] >= 0
            else f"label {y[record]} is negative; class numbers start at 0 ({NO_LABEL} or nothing means not known)"
        ),
    )
    _check_two_classes(nodes, num_classes=num_classes, faults=faults)
    return Labels(y, num_classes, ())


def _check_two_classes(nodes: Table, *, num_classes: int, faults: FaultList) -> None:
    if num_classes < 2:
        found = "only one class" if num_classes else "no label at all"
        faults.add(nodes.path.name, row=None, text=f"the label column has {found}; at least two classes are needed")
