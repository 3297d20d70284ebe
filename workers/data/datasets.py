"""The front door to data: a spec in, an opened data set out; and the list of what there is to ask for.

    spec --> prepared before? --yes--> mapped from our cache, in milliseconds, without torch_geometric or sklearn
                    |no
                    +--> reader (``readers/``) --> build.py checks --> store.py writes --> mapped

To add a data set: its name goes into ``workers.spec.NAMED_DATASETS``, its files (if it has any) into ``sources.py``,
its reader into ``readers/`` and into ``_reader`` or ``_BUILT_IN`` below.
"""

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from planner.frozen import Frozen
from workers.data.graph import GraphDataset
from workers.data.links import hide_links
from workers.data.paths import DataPaths
from workers.data.readers.builtin import read_digits_knn, read_karate
from workers.data.readers.molecules import read_molecules
from workers.data.readers.own import read_own_graph
from workers.data.readers.own_files import GRAPHS, check_unchanged, find_table, is_saved_object, own_key
from workers.data.readers.own_graphs import read_own_graphs
from workers.data.readers.pyg import read_pyg
from workers.data.readers.saved_pyg import read_saved_pyg
from workers.data.readers.sbm import read_sbm, read_sbm_graphs
from workers.data.readers.tu import read_tu
from workers.data.readers.wordnet3 import read_wordnet3
from workers.data.sources import SOURCES, find_source, has_split, in_raw_cache, raw_cache, raw_version
from workers.data.store import open_or_prepare, read_meta
from workers.errors import DatasetInvalidError, DatasetNotFoundError
from workers.spec import NAMED_DATASETS, DatasetSpec

_BUILT_IN: dict[str, Callable[[str], GraphDataset]] = {
    "karate": read_karate,
    "digits-knn": read_digits_knn,
    "sbm": read_sbm,
    "sbm-graphs": read_sbm_graphs,
}


class DatasetInfo(Frozen):
    """One line of the list: where a named set is, and its size once it was prepared (None before)."""

    name: str
    source: str
    is_found: bool
    where: str | None
    is_prepared: bool
    num_graphs: int | None = None
    num_nodes: int | None = None
    num_edges: int | None = None
    num_features: int | None = None
    num_classes: int | None = None


def load_dataset(spec: DatasetSpec, *, paths: DataPaths) -> GraphDataset:
    """Open the data set of ``spec``, preparing it first if nobody has (others who ask meanwhile wait for it).

    Where links are asked for, they are hidden by each process for itself, in a copy of the edges. Raises
    ``DatasetNotFoundError`` (unknown name, files not there) or ``DatasetInvalidError`` (files or split faulty).
    """
    dataset = _load_whole(spec, paths=paths)
    return dataset if spec.links is None else hide_links(dataset, spec.links)


def _load_whole(spec: DatasetSpec, *, paths: DataPaths) -> GraphDataset:
    if spec.path is not None:
        return _load_own(Path(spec.path), spec=spec, paths=paths)
    assert spec.name is not None, "DatasetSpec has a name or a path"
    _check_name(spec.name)
    _check_split(spec.name, split=spec.split, num_splits=_num_splits(spec.name))
    return open_or_prepare(
        paths.cache,
        key=_key(spec.name, split=spec.split, paths=paths),
        build=_reader(spec.name, split=spec.split, paths=paths),
        lock=spec.name,
        raw_version=raw_version(SOURCES[spec.name], paths=paths) if spec.name in SOURCES else "",
    )


def list_datasets(paths: DataPaths) -> list[DatasetInfo]:
    """Every named set, found or not. Looks at file names only and imports no tensor library."""
    return [_describe(name, source=source, paths=paths) for name, source in NAMED_DATASETS.items()]


def _load_own(path: Path, *, spec: DatasetSpec, paths: DataPaths) -> GraphDataset:
    path = path.expanduser().resolve()
    key = own_key(path)
    if is_saved_object(path):
        read: Callable[[], GraphDataset] = partial(read_saved_pyg, path, split=spec.split, directed=spec.directed)
    else:
        _check_split(str(path), split=spec.split, num_splits=1)
        is_many = find_table(path, GRAPHS) is not None
        read = partial(read_own_graphs if is_many else read_own_graph, path, directed=bool(spec.directed))

    def build() -> GraphDataset:
        dataset = read()
        check_unchanged(path, key=key)
        return dataset

    way = {None: "", True: "-directed", False: "-both-ways"}[spec.directed]
    return open_or_prepare(paths.cache, key=f"{key}{way}{f'-{spec.split}' if spec.split else ''}", build=build)


def _reader(name: str, *, split: int, paths: DataPaths) -> Callable[[], GraphDataset]:
    if name in _BUILT_IN:
        return lambda: _BUILT_IN[name](name)
    source = SOURCES[name]
    match NAMED_DATASETS[name]:
        case "wordnet3":
            return lambda: read_wordnet3(source, paths=paths)
        case "tu":
            return lambda: read_tu(source, paths=paths, split=split)
        case "molnet" | "zinc" | "lrgb":
            return lambda: read_molecules(source, paths=paths)
        case _:
            return lambda: read_pyg(source, paths=paths, split=split)


def _key(name: str, *, split: int, paths: DataPaths) -> str:
    """What a prepared set is kept under: its name, and the split where there may be several."""
    if _num_splits(name) > 1:
        return f"{name}-{split}"
    if name in SOURCES and SOURCES[name].split_file and not has_split(SOURCES[name], paths=paths):
        return f"{name}-made-split"
    return name


def _num_splits(name: str) -> int:
    return SOURCES[name].num_splits if name in SOURCES else 1


def _check_name(name: str) -> None:
    if name not in NAMED_DATASETS:
        close = difflib.get_close_matches(name.lower(), [known.lower() for known in NAMED_DATASETS], n=1)
        meant = [known for known in NAMED_DATASETS if close and known.lower() == close[0]]
        hint = f" (did you mean {meant[0]}?)" if meant else ""
        raise DatasetNotFoundError(
            f"there is no data set named {name!r}{hint}; the names are {', '.join(NAMED_DATASETS)}."
            " Your own files are given by path instead of name",
            name=name,
            known=list(NAMED_DATASETS),
        )


def _check_split(name: str, *, split: int, num_splits: int) -> None:
    if split >= num_splits:
        has = "has one split, number 0" if num_splits == 1 else f"has the splits 0..{num_splits - 1}"
        raise DatasetInvalidError(f"data set {name} {has}; found split {split} in the spec", name=name, split=split)


def _describe(name: str, *, source: str, paths: DataPaths) -> DatasetInfo:
    key = _key(name, split=0, paths=paths)
    meta = read_meta(paths.cache, key)
    where = _where(name, paths=paths)
    sizes = {} if meta is None else meta.model_dump(include=set(DatasetInfo.model_fields) - {"name"})
    return DatasetInfo(
        name=name,
        source=source,
        is_found=where is not None or meta is not None,
        where=where or (str(paths.cache / "prepared" / key) if meta else None),
        is_prepared=meta is not None,
        **sizes,
    )


def _where(name: str, *, paths: DataPaths) -> str | None:
    if name in _BUILT_IN:
        return "built in"
    source = SOURCES[name]
    found = find_source(source, paths=paths)
    if found is None and in_raw_cache(source, paths=paths):
        found = raw_cache(source, paths=paths)
    return str(found) if found else None
