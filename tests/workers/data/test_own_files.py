import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from workers.data import datasets
from workers.data.datasets import load_dataset
from workers.data.features import SparseFeatures
from workers.data.graph import NO_LABEL, NO_SPLIT
from workers.data.paths import DataPaths
from workers.errors import DatasetInvalidError, DatasetNotFoundError
from workers.spec import DatasetSpec

NODES = "id,f0,label,f1\na,1,cat,0.5\nb,2,dog,1e-3\nc,3,cat,-7\nd,4,,2\n"
EDGES = "source,target\na,b\nb,c\nc,c\nb,a\n"
SPLITS = "id,split\na,train\nb,val\nc,test\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    write(folder, nodes=NODES, edges=EDGES, splits=SPLITS)
    return folder


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        file = folder / f"{name}.csv"
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def load(folder: Path, paths: DataPaths):
    return load_dataset(DatasetSpec(path=str(folder)), paths=paths)


def faults_of(folder: Path, paths: DataPaths) -> str:
    with pytest.raises(DatasetInvalidError) as caught:
        load(folder, paths)
    return str(caught.value)


def test_three_small_files_become_a_graph(folder, bare_paths):
    dataset = load(folder, bare_paths)
    (graph,) = dataset.graphs
    assert (dataset.name, dataset.num_classes, dataset.class_names) == ("mine", 2, ("cat", "dog"))
    assert graph.y.tolist() == [0, 1, 0, NO_LABEL]
    assert graph.split.tolist() == [0, 1, 2, NO_SPLIT]
    assert np.allclose(graph.features.gather(np.arange(4)), [[1, 0.5], [2, 1e-3], [3, -7], [4, 2]])
    assert graph.indptr.tolist() == [0, 1, 3, 4, 4]
    assert graph.indices.tolist() == [1, 0, 2, 1]
    assert any("1 self loops left out" in note for note in dataset.notes)


def test_without_a_split_file_one_is_made(folder, bare_paths):
    (folder / "splits.csv").unlink()
    dataset = load(folder, bare_paths)
    assert (dataset.graphs[0].split == 0).any()
    assert any("split made here" in note for note in dataset.notes)


@pytest.mark.parametrize("labels", [["0", "1", "0", "-1"], ["0.0", "1.0", "0", ""], ["+0", "1", "0", "-1.0"]])
def test_class_numbers_stay_as_they_are(labels, folder, bare_paths):
    rows = "".join(f"{node},1,{label}\n" for node, label in zip("abcd", labels, strict=True))
    write(folder, nodes=f"id,x,label\n{rows}")
    dataset = load(folder, bare_paths)
    assert dataset.graphs[0].y.tolist() == [0, 1, 0, NO_LABEL]
    assert (dataset.num_classes, dataset.class_names) == (2, ())


def test_ids_are_any_text_and_the_order_of_columns_is_free(folder, bare_paths):
    write(
        folder,
        nodes='label,id,x\n0,"Smith, J.",1\n1, 007 ,2\n1,7,3\n',
        edges='weight,target,source\n0.5,007,"Smith, J."\n',
        splits="split,id\ntrain,7\n",
    )
    dataset = load(folder, bare_paths)
    assert dataset.graphs[0].indptr.tolist() == [0, 1, 2, 2]
    assert dataset.graphs[0].split.tolist() == [NO_SPLIT, NO_SPLIT, 0]
    assert dataset.graphs[0].edge_weights.tolist() == [0.5, 0.5]


def test_files_from_windows_read_alike(folder, bare_paths):
    unix = load(folder, bare_paths).graphs[0]
    for name, content in (("nodes", NODES), ("edges", EDGES), ("splits", SPLITS)):
        write(folder, **{name: b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode()})
    windows = load(folder, bare_paths).graphs[0]
    assert np.array_equal(unix.indices, windows.indices)
    assert np.array_equal(unix.y, windows.y)


def test_mostly_empty_features_are_kept_sparse(folder, bare_paths):
    rows = "".join(f"{n},{n % 2},{','.join('1' if n == column else '0' for column in range(30))}\n" for n in range(30))
    write(folder, nodes=f"id,label,{','.join(f'w{n}' for n in range(30))}\n{rows}", edges="source,target\n0,1\n")
    (folder / "splits.csv").unlink()
    assert isinstance(load(folder, bare_paths).graphs[0].features, SparseFeatures)


FAULTS = {
    "ragged row": ({"nodes": NODES + "e,5,cat\n"}, ["nodes.csv, row 6: has 3 values; the header names 4"]),
    "missing header": ({"edges": "a,b\nb,c\n"}, ["edges.csv, row 1: the header must name the columns source, target"]),
    "empty file": ({"edges": ""}, ["edges.csv, row 1", "found an empty row"]),
    "header only": ({"edges": "source,target\n"}, ["edges.csv: there is no record below the header"]),
    "header without end": ({"nodes": "id,label,x"}, ["nodes.csv: there is no record below the header"]),
    "doubled column": ({"nodes": "id,x,x,label\na,1,2,0\n"}, ["nodes.csv, row 1: every column needs", "'x'"]),
    "id twice": ({"nodes": NODES + "b,2,dog,1\n"}, ["nodes.csv, row 6: id 'b' was given already in row 3"]),
    "empty id": ({"nodes": NODES + ",2,dog,1\n"}, ["nodes.csv, row 6: the id is empty"]),
    "word for number": ({"nodes": NODES + "e,x1,cat,1\n"}, ["nodes.csv, row 6: feature 'f0' is 'x1', which is not"]),
    "date for number": ({"nodes": NODES + "e,2020-01-01,cat,1\n"}, ["row 6: feature 'f0' is '2020-01-01'"]),
    "truth for number": ({"nodes": NODES + "e,true,cat,1\n"}, ["row 6: feature 'f0' is 'true'"]),
    "NaN": ({"nodes": NODES + "e,NaN,cat,1\n"}, ["nodes.csv, row 6: feature 'f0' is 'NaN'"]),
    "infinite": ({"nodes": NODES + "e,1,cat,-inf\n"}, ["nodes.csv, row 6: feature 'f1' is '-inf'"]),
    "too large": ({"nodes": NODES + "e,1,cat,4e38\n"}, ["nodes.csv, row 6: feature 'f1' is '4e38'"]),
    "empty number": ({"nodes": NODES + "e,,cat,1\n"}, ["nodes.csv, row 6: feature 'f0' is empty"]),
    "empty column": (
        {"nodes": "id,x,label\na,,0\nb,,1\nc,,1\n"},
        ["row 2: feature 'x' is empty", "row 4: feature 'x'"],
    ),
    "mixed labels": ({"nodes": NODES + "e,1,3,1\n"}, ["row 2: label 'cat' is not a class number, while row 6 has one"]),
    "label gap": (
        {"nodes": "id,x,label\na,1,0\nb,1,1\nc,1,1\nd,1,57\n"},
        ["nodes.csv, row 5: label 57 is outside the classes 0..1: no node has the label 2"],
    ),
    "negative label": ({"nodes": "id,x,label\na,1,0\nb,1,1\nc,1,-5\n"}, ["nodes.csv, row 4: label -5 is negative"]),
    "one class": ({"nodes": "id,x,label\na,1,0\nb,1,0\nc,1,0\n"}, ["nodes.csv: the label column has only one class"]),
    "no label": ({"nodes": "id,x,label\na,1,\nb,1,\nc,1,\n"}, ["nodes.csv: the label column has no label at all"]),
    "missing source": ({"edges": EDGES + "z,a\n"}, ["edges.csv, row 6: source 'z' is not an id of nodes.csv"]),
    "missing target": ({"edges": EDGES + "a,z\n"}, ["edges.csv, row 6: target 'z' is not an id of nodes.csv"]),
    "empty end": ({"edges": EDGES + "a,\n"}, ["edges.csv, row 6: target '' is not an id"]),
    "self loops only": ({"edges": "source,target\na,a\nb,b\n"}, ["edges.csv: every edge leads from a node to itself"]),
    "split word": (
        {"splits": SPLITS + "d,training\n"},
        ["splits.csv, row 5: split 'training' is none of train, val, test"],
    ),
    "split id": ({"splits": SPLITS + "z,train\n"}, ["splits.csv, row 5: id 'z' is not an id of nodes.csv"]),
    "split twice": ({"splits": SPLITS + "a,test\n"}, ["splits.csv, row 2: id 'a' is listed 2 times", "row 5: id 'a'"]),
    "split without label": ({"splits": SPLITS + "d,test\n"}, ["splits.csv, row 5: node 'd' has no label"]),
    "empty training mask": ({"splits": "id,split\na,val\nb,test\n"}, ["splits.csv: the training mask is empty"]),
    "open quote": ({"edges": 'source,target\na,"b\nb",c\n'}, ["edges.csv, row 2: a quoted value runs over"]),
    "cut off text": ({"splits": SPLITS.encode() + b"d,tr\xc3"}, ["splits.csv, row 5: is not UTF-8 text"]),
    "not text": ({"nodes": NODES.encode() + b"\xff\xfe,1,cat,1\n"}, ["nodes.csv, row 6: is not UTF-8 text"]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_by_file_and_row(case, folder, bare_paths):
    files, named = FAULTS[case]
    write(folder, **files)
    message = faults_of(folder, bare_paths)
    assert str(folder) in message
    assert not (bare_paths.cache / "prepared").exists()
    for text in named:
        assert text in message


def test_a_fault_in_one_row_is_told_once_and_alone(folder, bare_paths):
    write(folder, nodes=NODES.replace("b,2,", "b,x,"))
    assert len(faults_of(folder, bare_paths).splitlines()) == 2


def test_blank_rows_are_skipped_and_still_counted(folder, bare_paths):
    write(folder, edges="source,target\n\na,b\n\n\nb,c\n\n")
    assert load(folder, bare_paths).num_edges == 4
    write(folder, edges="source,target\n\na,b\n\n\nb,z\nz,a\n\n")
    message = faults_of(folder, bare_paths)
    assert "edges.csv, row 6: target 'z'" in message
    assert "edges.csv, row 7: source 'z'" in message


def test_rows_are_exact_beyond_the_first_block_and_after_ragged_rows(folder, bare_paths, monkeypatch):
    from workers.data.readers import csv_table

    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 64)
    rows = [f"{n},{n},{n % 2}" for n in range(200)]
    rows[50] = "50"
    rows[150] = "150,huge,0"
    write(folder, nodes="\n".join(["id,x,label", *rows, ""]), edges="source,target\n0,1\n")
    (folder / "splits.csv").unlink()
    message = faults_of(folder, bare_paths)
    assert "nodes.csv, row 52: has 1 values" in message
    assert "nodes.csv, row 152: feature 'x' is 'huge'" in message
    assert len(message.splitlines()) == 3


def test_ten_faults_of_three_files_come_in_one_message(folder, bare_paths):
    write(
        folder,
        nodes="id,x,label\na,1,0\nb,two,1\na,3,1\nc,nan,9\n",
        edges="source,target\na,b\nx,y\n",
        splits="id,split\na,train\nb,maybe\nq,test\n",
    )
    with pytest.raises(DatasetInvalidError) as caught:
        load(folder, bare_paths)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "nodes.csv, row 3",
        "nodes.csv, row 4",
        "nodes.csv, row 5",
        "nodes.csv, row 5",
        "edges.csv, row 3",
        "edges.csv, row 3",
        "splits.csv, row 3",
        "splits.csv, row 4",
    ]
    again = pickle.loads(pickle.dumps(caught.value))
    assert [fault["row"] for fault in again.details["faults"]] == [3, 4, 5, 5, 3, 3, 3, 4]


def test_a_thousand_faults_are_told_by_the_first_ten(folder, bare_paths):
    write(folder, edges="source,target\n" + "".join(f"a,z{n}\n" for n in range(1000)))
    lines = faults_of(folder, bare_paths).splitlines()
    assert len(lines) == 11
    assert "looked no further than 10" in lines[0]
    assert lines[10].startswith("  edges.csv, row 11:")


@pytest.mark.parametrize("name", ["edges.csv", "nodes.csv"])
def test_a_missing_file_says_what_was_looked_for_and_found(name, folder, bare_paths):
    (folder / name).unlink()
    with pytest.raises(DatasetNotFoundError) as caught:
        load(folder, bare_paths)
    for named in (str(folder), f"{name} not there", "splits.csv"):
        assert named in str(caught.value)


def test_a_missing_folder_is_said(tmp_path, bare_paths):
    with pytest.raises(DatasetNotFoundError, match="no such folder"):
        load(tmp_path / "nowhere", bare_paths)


def test_an_edit_is_seen_even_if_size_and_time_stay_the_same(folder, bare_paths):
    before = load(folder, bare_paths)
    file = folder / "nodes.csv"
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_text(NODES.replace("a,1,", "a,9,"))
    os.utime(file, ns=times)
    after = load(folder, bare_paths)
    assert before.fingerprint != after.fingerprint
    assert after.graphs[0].features.gather(np.array([0]))[0, 0] == 9


def test_untouched_files_are_read_once(folder, bare_paths, monkeypatch):
    before = load(folder, bare_paths)
    monkeypatch.setattr(datasets, "read_own_graph", lambda _folder, **_: pytest.fail("the set was prepared already"))
    os.utime(folder / "nodes.csv")
    assert load(folder, bare_paths).fingerprint == before.fingerprint


def test_files_that_change_while_they_are_read_are_refused(folder, bare_paths, monkeypatch):
    read = datasets.read_own_graph

    def read_and_edit(path: Path, **options):
        dataset = read(path, **options)
        write(folder, nodes=NODES.replace("a,1,", "a,9,"))
        return dataset

    monkeypatch.setattr(datasets, "read_own_graph", read_and_edit)
    assert "changed while they were read" in faults_of(folder, bare_paths)
