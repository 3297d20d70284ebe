import dataclasses
import json
import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures, SparseFeatures, compact
from workers.data.graph import Graph, GraphDataset
from workers.data.store import FORMAT, open_or_prepare, read_meta

SPAWN = multiprocessing.get_context("spawn")


def ring(num_nodes: int, *, is_sparse: bool) -> Graph:
    nodes = np.arange(num_nodes)
    indptr, indices = from_edges(nodes, (nodes + 1) % num_nodes, num_nodes=num_nodes)
    matrix = np.zeros((num_nodes, 40), dtype=np.float32)
    matrix[nodes, nodes % 40] = nodes
    features = compact(DenseFeatures(matrix)) if is_sparse else DenseFeatures(matrix)
    return Graph(indptr, indices, features=features, y=nodes % 2, split=(nodes % 3).astype(np.int8))


def rings(*sizes: int, is_sparse: bool = False) -> GraphDataset:
    graphs = tuple(ring(size, is_sparse=is_sparse) for size in sizes)
    return build_dataset(
        "rings", graphs=graphs, num_classes=2, class_names=("even", "odd"), notes=("made",), best_accuracy=0.5
    )


def never() -> GraphDataset:
    raise AssertionError("this set was prepared already")


def entries(cache: Path) -> list[str]:
    return sorted(entry.name for entry in (cache / "prepared").iterdir())


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("sizes", [(9,), (5, 3, 12)])
def test_what_is_opened_equals_what_was_built(tmp_path, sizes, is_sparse):
    built = rings(*sizes, is_sparse=is_sparse)
    assert isinstance(built.graphs[0].features, SparseFeatures if is_sparse else DenseFeatures)
    open_or_prepare(tmp_path, key="rings", build=lambda: built)
    opened = open_or_prepare(tmp_path, key="rings", build=never)
    for field in dataclasses.fields(GraphDataset):
        if field.name != "graphs":
            assert getattr(opened, field.name) == getattr(built, field.name)
    for one, other in zip(opened.graphs, built.graphs, strict=True):
        for array in ("indptr", "indices", "y", "split"):
            assert np.array_equal(getattr(one, array), getattr(other, array))
            assert getattr(one, array).dtype == getattr(other, array).dtype
        rows = np.arange(one.num_nodes)
        assert np.array_equal(one.features.gather(rows), other.features.gather(rows))
    again = build_dataset("again", graphs=opened.graphs, num_classes=2, class_names=("even", "odd"))
    assert again.fingerprint == built.fingerprint


def test_a_graph_without_edges_is_kept_too(tmp_path):
    indptr, indices = from_edges(np.array([]), np.array([]), num_nodes=3)
    features = DenseFeatures(np.ones((3, 2), dtype=np.float32))
    lonely = Graph(indptr, indices, features=features, y=np.array([0, 1, 0]), split=np.zeros(3, dtype=np.int8))
    dataset = build_dataset("lonely", graphs=(lonely,), num_classes=2)
    (opened,) = open_or_prepare(tmp_path, key="lonely", build=lambda: dataset).graphs
    assert (opened.num_nodes, opened.num_edges) == (3, 0)


def test_features_are_mapped_and_not_read(tmp_path):
    opened = open_or_prepare(tmp_path, key="rings", build=lambda: rings(9))
    base = opened.graphs[0].features.matrix
    while not isinstance(base, np.memmap):
        base = base.base
    assert Path(base.filename).name == "features.matrix.npy"


def test_writing_into_an_opened_array_never_reaches_the_disk(tmp_path):
    open_or_prepare(tmp_path, key="rings", build=lambda: rings(9)).graphs[0].y[:] = 7
    assert open_or_prepare(tmp_path, key="rings", build=never).graphs[0].y.max() == 1


def test_meta_is_known_without_opening(tmp_path):
    assert read_meta(tmp_path, "rings") is None
    open_or_prepare(tmp_path, key="rings", build=lambda: rings(5, 3))
    meta = read_meta(tmp_path, "rings")
    assert (meta.num_graphs, meta.num_nodes, meta.num_edges, meta.features) == (2, 8, 16, "dense")


def test_a_set_of_an_older_format_is_prepared_again(tmp_path):
    open_or_prepare(tmp_path, key="rings", build=lambda: rings(5))
    file = tmp_path / "prepared" / "rings" / "meta.json"
    file.write_text(json.dumps({"format": FORMAT - 1, "what": "an older version wrote"}))
    assert read_meta(tmp_path, "rings") is None
    assert open_or_prepare(tmp_path, key="rings", build=lambda: rings(7)).num_nodes == 7
    assert open_or_prepare(tmp_path, key="rings", build=never).num_nodes == 7


def test_those_who_mapped_the_older_set_keep_it(tmp_path):
    older = open_or_prepare(tmp_path, key="rings", build=lambda: rings(5))
    (tmp_path / "prepared" / "rings" / "meta.json").write_text("{}")
    open_or_prepare(tmp_path, key="rings", build=lambda: rings(7))
    assert older.graphs[0].y.tolist() == [0, 1, 0, 1, 0]


def test_a_failed_preparation_leaves_nothing(tmp_path):
    def fail() -> GraphDataset:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        open_or_prepare(tmp_path, key="rings", build=fail)
    assert not (tmp_path / "prepared").exists()
    assert open_or_prepare(tmp_path, key="rings", build=lambda: rings(5)).num_nodes == 5


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", fail)
        with pytest.raises(OSError, match="disk full"):
            open_or_prepare(tmp_path, key="rings", build=lambda: rings(5))
    assert entries(tmp_path) == []


def _prepare_slowly(cache: Path, inside: Event, asked: Event) -> None:
    def build() -> GraphDataset:
        inside.set()
        assert asked.wait(60)
        _note(cache)
        return rings(5)

    open_or_prepare(cache, key="rings", build=build)


def _ask_meanwhile(cache: Path, inside: Event, asked: Event) -> None:
    def build() -> GraphDataset:
        _note(cache)
        return rings(5)

    assert inside.wait(60)
    asked.set()
    assert open_or_prepare(cache, key="rings", build=build).num_nodes == 5


def _note(cache: Path) -> None:
    with (cache / "built.txt").open("a") as file:
        file.write(f"{os.getpid()}\n")


def test_two_processes_that_come_at_once_prepare_once(tmp_path):
    inside, asked = SPAWN.Event(), SPAWN.Event()
    pair = [SPAWN.Process(target=work, args=(tmp_path, inside, asked)) for work in (_prepare_slowly, _ask_meanwhile)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
    assert [process.exitcode for process in pair] == [0, 0]
    assert len((tmp_path / "built.txt").read_text().splitlines()) == 1
    assert entries(tmp_path) == ["rings"]


def _die_while_preparing(cache: Path) -> None:
    def build() -> GraphDataset:
        (cache / "prepared" / "rings.partial").mkdir(parents=True)
        (cache / "prepared" / "rings.partial" / "y.npy").write_text("half a file")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    open_or_prepare(cache, key="rings", build=build)


def test_a_process_killed_while_preparing_does_not_block_the_next(tmp_path):
    victim = SPAWN.Process(target=_die_while_preparing, args=(tmp_path,))
    victim.start()
    victim.join(120)
    assert victim.exitcode == -signal.SIGKILL
    assert open_or_prepare(tmp_path, key="rings", build=lambda: rings(5)).num_nodes == 5
    assert entries(tmp_path) == ["rings"]


def test_a_set_of_changed_raw_files_is_made_again_and_without_the_files_the_last_one_serves(tmp_path):
    open_or_prepare(tmp_path, key="rings", build=lambda: rings(5), raw_version="10-20")
    assert open_or_prepare(tmp_path, key="rings", build=never, raw_version="10-20").num_nodes == 5
    assert open_or_prepare(tmp_path, key="rings", build=lambda: rings(7), raw_version="10-21").num_nodes == 7
    assert open_or_prepare(tmp_path, key="rings", build=never).num_nodes == 7
