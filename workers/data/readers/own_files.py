"""Which files a user's own data is: tables in a folder, as CSV or Parquet, or one file of a saved PyG object.

folder/   edges, nodes, splits (if wanted), graphs (sets of graphs), each as .csv or .parquet
file.pt   a ``torch_geometric.data.Data`` or ``HeteroData``, saved by ``torch.save``
"""

import hashlib
from pathlib import Path

from workers.data.readers.csv_table import read_csv
from workers.data.readers.faults import FaultList
from workers.data.readers.parquet_table import read_parquet
from workers.data.readers.tables import SUFFIXES, Table, Wanted
from workers.errors import DatasetInvalidError, DatasetNotFoundError

EDGES, NODES, SPLITS, GRAPHS = "edges", "nodes", "splits", "graphs"
SAVED_SUFFIXES = (".pt", ".pth")


def is_saved_object(path: Path) -> bool:
    """Whether ``path`` is to be read as a saved PyG object."""
    return path.suffix in SAVED_SUFFIXES


def own_key(path: Path) -> str:
    """Name of the prepared set: a hash of the files' whole content, so an edit of any kind makes another set.

    Raises ``DatasetNotFoundError`` where the folder or a wanted file is missing, ``DatasetInvalidError`` where a table
    is there twice. Costs one read of the files (about 1 GB a second) at every opening.
    """
    digest = hashlib.sha256(path.name.encode())
    for file in _files_of(path):
        digest.update(file.name.encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"own-{digest.hexdigest()[:32]}"


def check_unchanged(path: Path, *, key: str) -> None:
    """Raises ``DatasetInvalidError`` when the files no longer have ``own_key`` ``key``."""
    if own_key(path) != key:
        raise DatasetInvalidError(f"the files in {path} changed while they were read; submit again when they rest")


def find_table(folder: Path, stem: str) -> Path | None:
    """The file of the table called ``stem``, None where there is none. Raises ``DatasetInvalidError`` for two."""
    files = [file for suffix in SUFFIXES if (file := folder / f"{stem}{suffix}").is_file()]
    if len(files) > 1:
        raise DatasetInvalidError(
            f"own data: {folder} holds {files[0].name} and {files[1].name}; keep the one that is meant",
            path=str(folder),
        )
    return files[0] if files else None


def read_table(folder: Path, stem: str, *, wanted: Wanted, faults: FaultList) -> Table | None:
    """The table called ``stem``; faults of form are noted, None where they leave nothing to go on with, or no file."""
    path = find_table(folder, stem)
    if path is None:
        return None
    read = read_parquet if path.suffix == ".parquet" else read_csv
    table = read(path, wanted=wanted, faults=faults)
    if table is not None and not len(table):
        faults.add(path.name, row=None, text="there is no record below the header")
        return None
    return table


def _files_of(path: Path) -> list[Path]:
    if is_saved_object(path):
        if not path.is_file():
            raise DatasetNotFoundError(
                f"own data: there is no file {path}; give the path as the node that trains sees it", path=str(path)
            )
        return [path]
    tables = {stem: find_table(path, stem) for stem in (EDGES, NODES, SPLITS, GRAPHS)}
    missing = [f"{stem}.csv" for stem in (EDGES, NODES) if tables[stem] is None]
    if missing:
        found = sorted(file.name for file in path.iterdir())[:10] if path.is_dir() else "no such folder"
        raise DatasetNotFoundError(
            f"own data: looked for {EDGES}.csv and {NODES}.csv (or .parquet) in {path};"
            f" {' and '.join(missing)} not there (found: {found})."
            " Give the path of a folder that holds both, or of a PyG object saved as .pt, as the node that trains"
            " sees it",
            path=str(path),
            missing=missing,
        )
    return [file for file in tables.values() if file is not None]
