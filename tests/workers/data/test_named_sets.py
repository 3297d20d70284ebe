import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from workers.data.checks import check_dataset
from workers.data.datasets import list_datasets, load_dataset
from workers.data.edges import from_edges, to_edges
from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.paths import DataPaths
from workers.data.sources import SOURCES
from workers.errors import DatasetInvalidError
from workers.spec import NAMED_DATASETS, DatasetSpec

# name: nodes, directed entries, features, classes, (train, validation, test), as published with each set
PUBLISHED = {
    "Cora": (2708, 10556, 1433, 7, (140, 500, 1000)),
    "Citeseer": (3327, 9104, 3703, 6, (120, 500, 1000)),
    "Photo": (7650, 238162, 745, 8, (4590, 1530, 1530)),
    "Computers": (13752, 491722, 767, 10, (8251, 2750, 2751)),
    "CS": (18333, 163788, 6805, 15, (10999, 3666, 3668)),
    "Physics": (34493, 495924, 8415, 5, (20695, 6898, 6900)),
    "Tolokers": (11758, 1038000, 10, 2, (5879, 2939, 2940)),
    "Minesweeper": (10000, 78804, 7, 2, (5000, 2500, 2500)),
    "WordNet3": (264965, 2103972, 3238, 45, (58831, 29414, 29414)),
}


def contents(folder: Path) -> list[tuple[str, int, int]]:
    return [
        (str(file), file.stat().st_size, file.stat().st_mtime_ns)
        for file in sorted(folder.rglob("*"))
        if file.is_file() or file.is_dir()
    ]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_set_has_the_published_size_and_leaves_the_root_untouched(name, real_paths):
    before = contents(real_paths.root / SOURCES[name].family)
    dataset = load_dataset(DatasetSpec(name=name), paths=real_paths)
    (graph,) = dataset.graphs
    parts = tuple(int((graph.split == part).sum()) for part in (0, 1, 2))
    found = (graph.num_nodes, graph.num_edges, dataset.num_features, dataset.num_classes, parts)
    assert found == PUBLISHED[name]
    assert np.bincount(graph.y[graph.y >= 0]).min() > 0
    check_dataset(dataset)
    assert contents(real_paths.root / SOURCES[name].family) == before


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_set_is_undirected(name, real_paths):
    (graph,) = load_dataset(DatasetSpec(name=name), paths=real_paths).graphs
    sources, targets = to_edges(graph.indptr, graph.indices)
    backward = from_edges(targets, sources, num_nodes=graph.num_nodes, directed=True)
    assert np.array_equal(backward.indices, graph.indices)
    assert np.array_equal(backward.indptr, graph.indptr)


@pytest.mark.parametrize("name", ["Cora", "CS", "Physics", "WordNet3"])
def test_sets_that_are_mostly_zeros_are_kept_sparse(name, real_paths):
    (graph,) = load_dataset(DatasetSpec(name=name), paths=real_paths).graphs
    assert isinstance(graph.features, SparseFeatures)
    weight = sum(array.nbytes for array in graph.features.arrays().values())
    assert weight < graph.num_nodes * graph.features.num_features * 4 / 10


@pytest.mark.parametrize("name", ["Cora", "Photo"])
def test_bags_of_words_are_divided_by_their_sum_and_the_notes_say_so(name, real_paths):
    dataset = load_dataset(DatasetSpec(name=name), paths=real_paths)
    rows = dataset.graphs[0].features.gather(np.arange(dataset.num_nodes))
    sums = rows.sum(axis=1)
    assert np.allclose(sums[sums > 0], 1, atol=1e-5)
    assert any("divided by its sum" in note for note in dataset.notes)


def test_cora_equals_what_pyg_gives(real_paths, tmp_path):
    import torch
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    dataset = load_dataset(DatasetSpec(name="Cora"), paths=real_paths)
    (graph,) = dataset.graphs
    shutil.copytree(real_paths.root / "planetoid" / "Cora" / "raw", tmp_path / "Cora" / "raw")
    data = Planetoid(str(tmp_path), "Cora", transform=NormalizeFeatures())[0]
    assert torch.allclose(torch.from_numpy(graph.features.gather(np.arange(2708))), data.x, atol=1e-7)
    assert np.array_equal(graph.y, data.y.numpy())
    assert np.array_equal(graph.split == 0, data.train_mask.numpy())
    assert np.array_equal(graph.split == 2, data.test_mask.numpy())
    ours = set(zip(graph.indices.tolist(), np.repeat(np.arange(2708), np.diff(graph.indptr)).tolist(), strict=True))
    assert ours == set(zip(*data.edge_index.tolist(), strict=True))


def test_the_splits_of_a_heterophilous_set_differ(real_paths):
    first, second = (
        load_dataset(DatasetSpec(name="Minesweeper", split=split), paths=real_paths).graphs[0] for split in (0, 9)
    )
    assert not np.array_equal(first.split, second.split)
    assert np.array_equal(first.y, second.y)
    assert (second.split == 0).sum() == 5000
    assert isinstance(first.features, DenseFeatures)


@pytest.mark.parametrize("name", ["Cora", "karate"])
def test_a_split_that_is_not_shipped_is_refused(name, bare_paths):
    with pytest.raises(DatasetInvalidError, match="has one split, number 0; found split 3"):
        load_dataset(DatasetSpec(name=name, split=3), paths=bare_paths)


def test_a_prepared_set_opens_without_its_root(real_paths):
    load_dataset(DatasetSpec(name="Cora"), paths=real_paths)
    rootless = DataPaths(root=None, cache=real_paths.cache)
    assert load_dataset(DatasetSpec(name="Cora"), paths=rootless).num_nodes == 2708


def test_only_our_arrays_stay_in_the_cache_and_not_what_pyg_wrote(real_paths):
    load_dataset(DatasetSpec(name="Cora"), paths=real_paths)
    left = [name for _, folders, _ in os.walk(real_paths.cache) for name in folders]
    assert "processed" not in left


def test_the_list_names_every_set_and_knows_the_size_of_the_prepared(real_paths):
    load_dataset(DatasetSpec(name="Cora"), paths=real_paths)
    infos = {info.name: info for info in list_datasets(real_paths)}
    assert list(infos) == list(NAMED_DATASETS)
    cora = infos["Cora"]
    assert (cora.is_found, cora.is_prepared, cora.num_nodes, cora.num_classes) == (True, True, 2708, 7)
    assert cora.where == str(real_paths.root / "planetoid" / "Cora")


def test_without_a_root_only_the_built_in_sets_are_found(bare_paths):
    infos = list_datasets(bare_paths)
    assert {info.name for info in infos if info.is_found} == {"karate", "digits-knn", "sbm", "sbm-graphs"}
    assert all(info.num_nodes is None and not info.is_prepared for info in infos)
