"""Where the files of a named data set lie: below the root (read-only), or in our own cache once downloaded.

The layout is PyG's: ``<root>/<family>/<folder>/raw/<files>``, with a split in ``split/`` beside ``raw/`` where one is
shipped (ZINC's file lies without ``raw/``). Importing this module imports no tensor library, so listing data sets stays
quick.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from workers.data.paths import DataPaths
from workers.errors import DatasetNotFoundError


@dataclass(frozen=True)
class Source:
    """One published data set: its files, and the class of PyG that reads it.

    ``folder`` lies below ``family``; ``pyg_class`` is empty where the reader is ours. ``bag_of_words`` features are
    divided by their row sum. ``url`` is where PyG would download from.
    """

    name: str
    family: str
    folder: str
    raw_files: tuple[str, ...]
    pyg_class: str = ""
    split_file: str = ""
    num_splits: int = 1
    bag_of_words: bool = False
    url: str = ""
    raw_folder: str = "raw"

    @property
    def wanted(self) -> str:
        """The place below the root where the files are looked for first."""
        return str(Path(self.family, self.folder, self.raw_folder))


def _planetoid(name: str) -> Source:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return Source(
        name=name,
        family="planetoid",
        folder=name,
        raw_files=tuple(f"ind.{name.lower()}.{part}" for part in parts),
        pyg_class="Planetoid",
        bag_of_words=True,
        url="https://github.com/kimiyoung/planetoid",
    )


def _pitfalls(name: str, *, family: str, pyg_class: str, raw_file: str, split_file: str) -> Source:
    return Source(
        name=name,
        family=family,
        folder=name,
        raw_files=(raw_file,),
        pyg_class=pyg_class,
        split_file=split_file,
        bag_of_words=True,
        url="https://github.com/shchur/gnn-benchmark",
    )


def _heterophilous(name: str) -> Source:
    return Source(
        name=name,
        family="heterophilous",
        folder=name.lower(),
        raw_files=(f"{name.lower()}.npz",),
        pyg_class="HeterophilousGraphDataset",
        num_splits=10,
        url="https://github.com/yandex-research/heterophilous-graphs",
    )


def _tu(name: str, *, split_file: str = "") -> Source:
    return Source(
        name=name,
        family="tu",
        folder=name,
        raw_files=tuple(f"{name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels")),
        split_file=split_file,
        num_splits=10 if split_file else 1,
    )


def _moleculenet(name: str, *, raw_file: str, split_file: str = "") -> Source:
    return Source(name=name, family="molnet", folder=name.lower(), raw_files=(raw_file,), split_file=split_file)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        _planetoid("Cora"),
        _planetoid("Citeseer"),
        _pitfalls(
            "Photo",
            family="amazon",
            pyg_class="Amazon",
            raw_file="amazon_electronics_photo.npz",
            split_file="amazon-photo_split.npz",
        ),
        _pitfalls(
            "Computers",
            family="amazon",
            pyg_class="Amazon",
            raw_file="amazon_electronics_computers.npz",
            split_file="amazon-computer_split.npz",
        ),
        _pitfalls(
            "CS",
            family="coauthor",
            pyg_class="Coauthor",
            raw_file="ms_academic_cs.npz",
            split_file="coauthor-cs_split.npz",
        ),
        _pitfalls(
            "Physics",
            family="coauthor",
            pyg_class="Coauthor",
            raw_file="ms_academic_phy.npz",
            split_file="coauthor-physics_split.npz",
        ),
        _heterophilous("Tolokers"),
        _heterophilous("Minesweeper"),
        Source(name="WordNet3", family="wordnet3", folder="", raw_files=("wordnet3.npz",)),
        _tu("MUTAG"),
        _tu("ENZYMES", split_file="ENZYMES_splits.json"),
        _tu("PROTEINS", split_file="PROTEINS_full_splits.json"),
        _tu("Mutagenicity"),
        _moleculenet("ESOL", raw_file="delaney-processed.csv", split_file="scaffold.csv"),
        _moleculenet("Tox21", raw_file="tox21.csv"),
        _moleculenet("HIV", raw_file="HIV.csv", split_file="scaffold.csv"),
        Source(name="ZINC", family="zinc", folder="", raw_files=("zinc12k_jtnn.csv",), raw_folder=""),
        Source(
            name="Peptides-func",
            family="lrgb",
            folder="peptides-functional",
            raw_files=("peptide_multi_class_dataset.csv.gz",),
        ),
    )
}


def raw_cache(source: Source, *, paths: DataPaths) -> Path:
    """Our own copy: the folder that holds ``raw/`` (and ``split/``), whether it exists or not."""
    return paths.cache / "raw" / source.family / source.folder


def find_source(source: Source, *, paths: DataPaths) -> Path | None:
    """The folder below the root whose ``raw/`` has every file, None where there is none."""
    return next((place for place in _places(source, paths=paths) if _has_raw(source, place)), None)


def copy_to_cache(source: Source, *, place: Path, paths: DataPaths) -> Path:
    """Copy the raw files and the split from ``place`` into our cache, over what is there. Returns the copy's folder."""
    target = raw_cache(source, paths=paths)
    wanted = [Path("raw", file) for file in source.raw_files]
    if source.split_file and (place / "split" / source.split_file).is_file():
        wanted.append(Path("split", source.split_file))
    shutil.rmtree(target, ignore_errors=True)
    for file in wanted:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(place / file, target / file)  # contents only: the root's read-only mode stays there
    return target


def has_split(source: Source, *, paths: DataPaths) -> bool:
    """Whether a shipped split lies beside the files that would be read; without one a split is made."""
    place = find_source(source, paths=paths) or raw_cache(source, paths=paths)
    return (place / "split" / source.split_file).is_file()


def raw_version(source: Source, *, paths: DataPaths) -> str:
    """The sizes of the raw files and the split below the root, in one word; empty where the root has none of them."""
    place = find_source(source, paths=paths)
    if place is None:
        return ""
    files = [place / source.raw_folder / file for file in source.raw_files]
    split = place / "split" / source.split_file
    if source.split_file and split.is_file():
        files.append(split)
    return "-".join(str(file.stat().st_size) for file in files)


def in_raw_cache(source: Source, *, paths: DataPaths) -> bool:
    """Whether an earlier copy or download is complete."""
    return _has_raw(source, raw_cache(source, paths=paths))


def not_found(source: Source, *, paths: DataPaths, download: str) -> DatasetNotFoundError:
    """The one error for missing files: what was looked for, where, what became of the download, what to set."""
    places = (*_places(source, paths=paths), raw_cache(source, paths=paths))
    looked_in = [str(place / source.raw_folder) for place in places]
    root = f"GRAPHMILL_DATA_ROOT is {paths.root}" if paths.root else "GRAPHMILL_DATA_ROOT is not set"
    return DatasetNotFoundError(
        f"data set {source.name}: looked for {', '.join(source.raw_files)} in {', '.join(looked_in)} ({root});"
        f" {download}. Set GRAPHMILL_DATA_ROOT to a folder that holds {source.wanted},"
        " or train on a built-in set: karate, digits-knn, sbm",
        name=source.name,
        looked_for=list(source.raw_files),
        looked_in=looked_in,
    )


def _places(source: Source, *, paths: DataPaths) -> list[Path]:
    """Candidates below the root, in order: by family, by PyG's class name, and the bare folder."""
    if paths.root is None:
        return []
    parents = [source.family, *([source.pyg_class, ""] if source.pyg_class else [])]
    return [paths.root / parent / source.folder for parent in parents]


def _has_raw(source: Source, place: Path) -> bool:
    return all((place / source.raw_folder / file).is_file() for file in source.raw_files)
