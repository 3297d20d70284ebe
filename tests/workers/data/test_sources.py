import contextlib
import pickle
import shutil
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from torch_geometric.datasets import Amazon

from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.data.sources import SOURCES, find_source, raw_version
from workers.data.splits import SPLIT_NOTE
from workers.errors import DatasetInvalidError, DatasetNotFoundError
from workers.spec import NAMED_DATASETS, DatasetSpec


def test_every_named_set_has_a_source_or_is_built_in():
    built_in = {name for name, source in NAMED_DATASETS.items() if source == "built in"}
    assert set(SOURCES) | built_in == set(NAMED_DATASETS)
    assert {name: SOURCES[name].family for name in SOURCES} == {name: NAMED_DATASETS[name] for name in SOURCES}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", SOURCES)
def test_missing_files_are_one_error_that_says_what_where_and_what_to_set(name, tmp_path):
    paths = DataPaths(root=tmp_path / "root", cache=tmp_path / "cache")
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset(DatasetSpec(name=name), paths=paths)
    message = str(caught.value)
    source = SOURCES[name]
    for named in (*source.raw_files, str(paths.root / source.wanted), "GRAPHMILL_DATA_ROOT", "karate"):
        assert named in message
    assert ("cannot be reached" in message) == bool(source.url)
    assert not (tmp_path / "cache" / "prepared").exists()


@pytest.mark.usefixtures("offline")
def test_an_unset_root_is_said(bare_paths):
    with pytest.raises(DatasetNotFoundError, match="GRAPHMILL_DATA_ROOT is not set") as caught:
        load_dataset(DatasetSpec(name="Photo"), paths=bare_paths)
    assert pickle.loads(pickle.dumps(caught.value)).details == caught.value.details


@pytest.mark.parametrize(("asked", "meant"), [("cora", "Cora"), ("Fotos", "Photo"), ("wordnet", "WordNet3")])
def test_an_unknown_name_lists_the_known_and_guesses(asked, meant, bare_paths):
    with pytest.raises(DatasetNotFoundError) as caught:
        load_dataset(DatasetSpec(name=asked), paths=bare_paths)
    assert repr(asked) in str(caught.value)
    assert f"did you mean {meant}?" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMED_DATASETS)


@pytest.mark.parametrize("folder", ["planetoid/Cora", "Planetoid/Cora", "Cora"])
def test_the_usual_layouts_are_found(folder, tmp_path):
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    for file in SOURCES["Cora"].raw_files:
        (raw / file).touch()
    paths = DataPaths(root=tmp_path, cache=tmp_path / "cache")
    assert find_source(SOURCES["Cora"], paths=paths) == tmp_path / folder
    (raw / SOURCES["Cora"].raw_files[3]).unlink()
    assert find_source(SOURCES["Cora"], paths=paths) is None


@pytest.fixture
def photo_root(data_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(
        data_root / "amazon" / "Photo", tmp_path / "root" / "amazon" / "Photo", copy_function=shutil.copyfile
    )
    return tmp_path / "root"


def test_without_a_shipped_split_one_is_made_and_said(photo_root, tmp_path):
    shutil.rmtree(photo_root / "amazon" / "Photo" / "split")
    dataset = load_dataset(DatasetSpec(name="Photo"), paths=DataPaths(root=photo_root, cache=tmp_path / "cache"))
    assert SPLIT_NOTE in dataset.notes
    assert np.isclose((dataset.graphs[0].split == 0).mean(), 0.6, atol=0.01)


def test_a_made_split_gives_way_to_a_shipped_one_that_comes_later(photo_root, tmp_path):
    paths, shipped = DataPaths(root=photo_root, cache=tmp_path / "cache"), photo_root / "amazon" / "Photo" / "split"
    shipped.rename(tmp_path / "split")
    made = load_dataset(DatasetSpec(name="Photo"), paths=paths)
    (tmp_path / "split").rename(shipped)
    found = load_dataset(DatasetSpec(name="Photo"), paths=paths)
    assert SPLIT_NOTE in made.notes
    assert SPLIT_NOTE not in found.notes
    assert made.fingerprint != found.fingerprint


def test_a_damaged_file_is_named_and_the_mended_one_is_read(photo_root, tmp_path):
    paths = DataPaths(root=photo_root, cache=tmp_path / "cache")
    file = photo_root / "amazon" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetInvalidError, match="PyG cannot read the files in") as caught:
        load_dataset(DatasetSpec(name="Photo"), paths=paths)
    assert str(file.parent) in str(caught.value)
    file.write_bytes(whole)
    assert load_dataset(DatasetSpec(name="Photo"), paths=paths).num_nodes == 7650


def test_a_damaged_wordnet_is_named(tmp_path):
    file = tmp_path / "wordnet3" / "raw" / "wordnet3.npz"
    file.parent.mkdir(parents=True)
    np.savez(file, labels=np.zeros(3))
    with pytest.raises(DatasetInvalidError, match="cannot read") as caught:
        load_dataset(DatasetSpec(name="WordNet3"), paths=DataPaths(root=tmp_path, cache=tmp_path / "cache"))
    assert str(file) in str(caught.value)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """The site answers; what it then sends is up to the test."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_args, **_kwargs: contextlib.nullcontext())


@pytest.mark.usefixtures("online")
def test_what_is_not_found_is_downloaded_by_pyg(photo_root, bare_paths, monkeypatch):
    raw = photo_root / "amazon" / "Photo" / "raw"
    monkeypatch.setattr(Amazon, "download", lambda self: shutil.copytree(raw, self.raw_dir, dirs_exist_ok=True))
    assert load_dataset(DatasetSpec(name="Photo"), paths=bare_paths).num_nodes == 7650


@pytest.mark.usefixtures("online")
def test_a_download_that_breaks_off_is_not_taken_for_a_whole_one(bare_paths, monkeypatch):
    def break_off(self: Amazon) -> None:
        Path(self.raw_paths[0]).write_bytes(b"PK half a file")
        raise TimeoutError("the read operation timed out")

    monkeypatch.setattr(Amazon, "download", break_off)
    for _ in range(2):
        with pytest.raises(DatasetNotFoundError, match=r"failed .*timed out"):
            load_dataset(DatasetSpec(name="Photo"), paths=bare_paths)


@pytest.mark.usefixtures("offline")
def test_files_downloaded_before_serve_without_root_and_network(photo_root, tmp_path):
    """What PyG downloads lands in our raw cache; here a copy plays its part."""
    cache = tmp_path / "cache"
    shutil.copytree(photo_root / "amazon" / "Photo" / "raw", cache / "raw" / "amazon" / "Photo" / "raw")
    dataset = load_dataset(DatasetSpec(name="Photo"), paths=DataPaths(root=None, cache=cache))
    assert dataset.num_nodes == 7650


@pytest.mark.parametrize("name", SOURCES)
def test_a_raw_file_of_another_size_is_another_version(name, tmp_path):
    source, paths = SOURCES[name], DataPaths(root=tmp_path, cache=tmp_path / "cache")
    assert raw_version(source, paths=paths) == ""
    raw = tmp_path / source.wanted
    raw.mkdir(parents=True)
    for file in source.raw_files:
        (raw / file).write_bytes(b"12")
    before = raw_version(source, paths=paths)
    (raw / source.raw_files[0]).write_bytes(b"123")
    assert before != raw_version(source, paths=paths) != ""
