"""Sets of molecules, written as SMILES: ESOL, Tox21 and HIV of MoleculeNet, ZINC, Peptides-func.

PyG's ``from_smiles`` (rdkit) gives the nine kinds of categories of an atom and the three of a bond that OGB uses. An
atom's features are the one-hot columns of its categories, those that occur in the set: a linear map of them is the sum
of one learned embedding per kind. A bond's type is its combination of the three. What rdkit cannot read is left out,
and the notes say how many; splits count rows of the file, so they stay true.
"""

import csv
import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workers.data.build import build_dataset
from workers.data.edge_columns import EdgeColumns
from workers.data.features import SparseFeatures, compact, sparse_from_coordinates
from workers.data.graph import NO_SPLIT, SPLIT_NAMES, GraphDataset, Task
from workers.data.paths import DataPaths
from workers.data.readers.many_graphs import cut_graphs, offsets_of
from workers.data.sources import Source, find_source, not_found
from workers.data.splits import split_from_members
from workers.errors import DatasetInvalidError


@dataclass(frozen=True)
class _Table:
    """How the file of one set is read. ``labels``: a row to its numbers, NaN where not known."""

    task: Task
    labels: Callable[[dict[str, str]], list[float]]
    split: Callable[[Path, list[dict[str, str]]], np.ndarray]
    split_note: str


def read_molecules(source: Source, *, paths: DataPaths) -> GraphDataset:
    """Prepare one set. Raises ``DatasetNotFoundError`` or ``DatasetInvalidError``."""
    place = find_source(source, paths=paths)
    if place is None:
        raise not_found(source, paths=paths, download="it is not downloaded")
    table = _TABLES[source.name]
    try:
        rows = list(_rows(place / source.raw_folder / source.raw_files[0]))
        labels = np.array([table.labels(row) for row in rows], dtype=np.float32)
        split = table.split(place, rows)
        atoms, bonds = _read_all([row["smiles"] for row in rows])
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise DatasetInvalidError(
            f"data set {source.name}: cannot read the files in {place} ({type(error).__name__}: {error});"
            " compare them with the original",
            name=source.name,
        ) from error
    kept = np.flatnonzero([len(each) > 0 for each in atoms])
    offsets = offsets_of([len(atoms[row]) for row in kept])
    ends = np.concatenate([bonds[row][:, :2] + start for row, start in zip(kept, offsets, strict=False)])
    _, bond_types = np.unique(np.concatenate([bonds[row][:, 2:] for row in kept]), axis=0, return_inverse=True)
    is_class = table.task == "classes"
    graphs = cut_graphs(
        node_offsets=offsets,
        sources=ends[:, 0],
        targets=ends[:, 1],
        features=compact(_one_hot(np.concatenate([atoms[row] for row in kept]))),
        y=labels[kept, 0].astype(np.int64) if is_class else labels[kept],
        split=split[kept],
        columns=EdgeColumns(types=bond_types.reshape(-1).astype(np.uint8)),
    )
    notes = (
        table.split_note,
        f"{len(rows) - len(kept)} of {len(rows)} molecules left out: rdkit does not read them",
        "features: one column per category of an atom; edge types: kinds of bonds",
    )
    num_classes = 2 if is_class else labels.shape[1]
    return build_dataset(
        source.name, graphs=graphs, num_classes=num_classes, notes=notes, level="graph", task=table.task
    )


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with gzip.open(file, "rt", newline="") if file.suffix == ".gz" else file.open(newline="") as text:
        yield from csv.DictReader(text)


def _read_all(smiles: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Per molecule: categories of its atoms int64 [n, 9]; its bonds int64 [e, 2 + 3], both ends and the categories."""
    from torch_geometric.utils import from_smiles

    atoms, bonds = [], []
    for text in smiles:
        molecule = from_smiles(text.strip())
        atoms.append(molecule.x.numpy())
        bonds.append(np.concatenate([molecule.edge_index.numpy().T, molecule.edge_attr.numpy()], axis=1))
    return atoms, bonds


def _one_hot(categories: np.ndarray) -> SparseFeatures:
    """[N, sum of the categories that occur] from int64 [N, K]."""
    columns, width = [], 0
    for kind in categories.T:
        present, codes = np.unique(kind, return_inverse=True)
        columns.append(codes + width)
        width += len(present)
    rows = np.tile(np.arange(len(categories)), len(columns))
    ones = np.ones(len(rows), dtype=np.float32)
    return sparse_from_coordinates(rows, np.concatenate(columns), ones, shape=(len(categories), width))


def _numbers(*columns: str) -> Callable[[dict[str, str]], list[float]]:
    return lambda row: [float(row[column] or "nan") for column in columns]


def _listed(row: dict[str, str]) -> list[float]:
    return [float(word) for word in row["labels"].strip("[]").split(",")]


def _scaffold_file(place: Path, rows: list[dict[str, str]]) -> np.ndarray:
    """``split/scaffold.csv``: row of the data (from 0), part."""
    split = np.full(len(rows), NO_SPLIT, dtype=np.int8)
    for entry in _rows(place / "split" / "scaffold.csv"):
        split[int(entry["row"])] = _part(entry["split"])
    return split


def _split_column(place: Path, rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([_part(row["split"]) for row in rows], dtype=np.int8)


def _made_split(place: Path, rows: list[dict[str, str]]) -> np.ndarray:
    """Without a published split: a seeded 80/10/10 of the rows."""
    order = np.random.default_rng(0).permutation(len(rows))
    cuts = (int(0.8 * len(rows)), int(0.9 * len(rows)))
    train, validation, test = np.split(order, cuts)
    return split_from_members(len(rows), train=train, validation=validation, test=test)


def _member_file(place: Path, rows: list[dict[str, str]]) -> np.ndarray:
    with np.load(place / "splits_random_stratified_peptide.npz") as members:
        parts = {"train": members["train"], "validation": members["val"], "test": members["test"]}
        return split_from_members(len(rows), **parts)


def _part(word: str) -> int:
    return SPLIT_NAMES.index("val" if word in ("valid", "validation") else word)


_TOX21 = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD"),
    *("NR-PPAR-gamma", "SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)
_SCAFFOLD_NOTE = "shipped scaffold split (Bemis-Murcko, 80/10/10)"
_TABLES: dict[str, _Table] = {
    "ESOL": _Table("regression", _numbers("measured log solubility in mols per litre"), _scaffold_file, _SCAFFOLD_NOTE),
    "Tox21": _Table("multilabel", _numbers(*_TOX21), _made_split, "split made here: 80/10/10 of the rows, seed 0"),
    "HIV": _Table("classes", _numbers("HIV_active"), _scaffold_file, _SCAFFOLD_NOTE),
    "ZINC": _Table("regression", _numbers("y"), _split_column, "10,000/1,000/1,000; validation and test as published"),
    "Peptides-func": _Table("multilabel", _listed, _member_file, "published split (LRGB)"),
}
