"""Own tables with weights, times, types and features of edges, times and types of nodes; as CSV and as Parquet."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from workers.data.datasets import load_dataset
from workers.data.graph import NO_TIME
from workers.data.paths import DataPaths
from workers.errors import DatasetInvalidError, ModelInvalidError
from workers.spec import DatasetSpec, GraphormerSpec
from workers.training.model_fit import resolve_model

NODES = (
    "id,label,type,time,f0,f1\n"
    "p1,0,paper,2001,1,\np2,1,paper,2002,2,\np3,0,paper,2003,3,\na1,,author,,,7\na2,,author,,,8\n"
)
EDGES = (
    "source,target,type,weight,time,pages,score\n"
    "a1,p1,writes,1,2001,10,0.5\na2,p2,writes,0.5,2002,20,1\np2,p1,cites,2,2002,30,2\np2,p1,cites,3,2002,40,3\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return write(tmp_path / "mine")


def write(folder: Path, *, nodes: str = NODES, edges: str = EDGES) -> Path:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(edges)
    return folder


def as_parquet(folder: Path, *stems: str, **types: pyarrow.DataType) -> Path:
    """Turn tables of the folder into Parquet, each column in the type that it looks like, or that is given."""
    for stem in stems:
        options = pyarrow.csv.ConvertOptions(column_types={**types}, strings_can_be_null=True, null_values=[""])
        table = pyarrow.csv.read_csv(folder / f"{stem}.csv", convert_options=options)
        pyarrow.parquet.write_table(table, folder / f"{stem}.parquet")
        (folder / f"{stem}.csv").unlink()
    return folder


def load(folder: Path, paths: DataPaths, **spec):
    return load_dataset(DatasetSpec(path=str(folder), **spec), paths=paths)


def message_of(folder: Path, paths: DataPaths) -> str:
    with pytest.raises(DatasetInvalidError) as caught:
        load(folder, paths)
    return str(caught.value)


def test_every_column_reaches_the_graph(folder, bare_paths):
    dataset = load(folder, bare_paths, directed=True)
    (graph,) = dataset.graphs
    assert (dataset.edge_type_names, dataset.node_type_names) == (("cites", "writes"), ("author", "paper"))
    assert graph.indptr.tolist() == [0, 2, 3, 3, 3, 3]
    assert graph.indices.tolist() == [1, 3, 4]
    assert graph.edge_types.tolist() == [0, 1, 1]
    assert graph.edge_weights.tolist() == [5, 1, 0.5]
    assert graph.edge_times.tolist() == [2002, 2001, 2002]
    assert graph.edge_features.tolist() == [[30, 2], [10, 0.5], [20, 1]]
    assert graph.node_types.tolist() == [1, 1, 1, 0, 0]
    assert graph.node_times.tolist() == [2001, 2002, 2003, NO_TIME, NO_TIME]
    assert graph.features.gather(np.arange(5)).tolist() == [[1, 0], [2, 0], [3, 0], [0, 7], [0, 8]]
    assert "directed: all 4 edges are kept one way" in dataset.notes[0]


def test_the_direction_asked_for_makes_a_set_of_its_own(folder, bare_paths):
    assert load(folder, bare_paths).num_edges == 6
    assert load(folder, bare_paths, directed=True).num_edges == 3
    assert load(folder, bare_paths, directed=False).num_edges == 6


def test_g17_every_column_stays_with_its_edge_in_any_order_of_the_rows(folder, bare_paths):
    """Case G17: unsorted edges got the columns of others. (Of equal edges the first counts, so here are none.)"""
    header, *rows = EDGES.splitlines()[:-1]
    expected = load(write(folder, edges="\n".join([header, *rows, ""])), bare_paths).fingerprint
    assert load(write(folder, edges="\n".join([header, *rows[::-1], ""])), bare_paths).fingerprint == expected


@pytest.mark.parametrize("stems", [("nodes",), ("edges",), ("nodes", "edges")])
def test_parquet_is_read_as_csv_is(stems, folder, bare_paths):
    expected = load(folder, bare_paths).fingerprint
    assert load(as_parquet(folder, *stems), bare_paths).fingerprint == expected


def test_parquet_ids_may_be_numbers_and_labels_too(tmp_path, bare_paths):
    nodes = pyarrow.table({"id": [7, 8, 9], "label": pyarrow.array([0, 1, None], pyarrow.int8()), "x": [1.0, 2, 3]})
    pyarrow.parquet.write_table(nodes, tmp_path / "nodes.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"source": [7, 9], "target": [8, 8]}), tmp_path / "edges.parquet")
    (tmp_path / "splits.csv").write_text("id,split\n7,train\n8,test\n")
    (graph,) = load(tmp_path, bare_paths).graphs
    assert graph.y.tolist() == [0, 1, -1]
    assert graph.split.tolist() == [0, 2, -1]
    assert graph.indices.tolist() == [1, 0, 2, 1]


FAULTS = {
    "no weight": ("a1,p1,writes,,2001,1,1", "edges.csv, row 6: column 'weight' is empty"),
    "word for weight": ("a1,p1,writes,x,2001,1,1", "edges.csv, row 6: column 'weight' is 'x'"),
    "negative weight": ("a1,p1,writes,-2,2001,1,1", "edges.csv, row 6: weight -2 is negative"),
    "no time": ("a1,p1,writes,1,,1,1", "edges.csv, row 6: time '' is no whole number"),
    "date": ("a1,p1,writes,1,2001-05-06,1,1", "edges.csv, row 6: time '2001-05-06' is no whole number"),
    "no type": ("a1,p1,,1,2001,1,1", "edges.csv, row 6: the type is empty"),
    "word for feature": ("a1,p1,writes,1,2001,many,1", "edges.csv, row 6: feature 'pages' is 'many'"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_in_a_column_of_edges_is_named_by_its_row(case, folder, bare_paths):
    row, expected = FAULTS[case]
    found = message_of(write(folder, edges=f"{EDGES}{row}\n"), bare_paths)
    assert expected in found
    assert len(found.splitlines()) == 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("p4,1,paper,2004,,", "nodes.csv, row 7: feature 'f0' is empty"),
        ("p4,1,paper,2004,1,5", "row 2: feature 'f1' is empty"),
        ("p4,1,paper,soon,1,", "nodes.csv, row 7: time 'soon' is no whole number"),
        ("p4,1,,2004,1,1", "nodes.csv, row 7: the type is empty"),
    ],
)
def test_a_fault_in_a_column_of_nodes_is_named_by_its_row(row, expected, folder, bare_paths):
    assert expected in message_of(write(folder, nodes=f"{NODES}{row}\n"), bare_paths)


def test_a_feature_that_no_node_has_is_a_fault(folder, bare_paths):
    nodes = "\n".join(f"{row}{',f2' if row.startswith('id') else ','}" for row in NODES.splitlines())
    assert "row 2: feature 'f2' is empty" in message_of(write(folder, nodes=nodes + "\n"), bare_paths)


def test_faults_in_parquet_are_named_by_record(folder, bare_paths):
    write(folder, edges=EDGES + "a1,p9,writes,-2,2001,1,1\n")
    found = message_of(as_parquet(folder, "edges"), bare_paths)
    assert "of a Parquet file row 1 is the first record" in found
    assert "edges.parquet, row 5: target 'p9' is not an id of nodes.csv" in found
    assert "edges.parquet, row 5: weight -2 is negative" in found


def test_parquet_that_is_none_or_has_a_list_for_an_id_is_refused(folder, bare_paths):
    (folder / "edges.csv").unlink()
    (folder / "edges.parquet").write_bytes(b"no such thing")
    assert "edges.parquet: is no Parquet file that can be read" in message_of(folder, bare_paths)
    listed = pyarrow.table({"source": [["a1"]], "target": ["p1"]})
    pyarrow.parquet.write_table(listed, folder / "edges.parquet")
    assert "column 'source' is of the type list" in message_of(folder, bare_paths)


def test_a_table_that_is_there_twice_is_refused(folder, bare_paths):
    (folder / "edges.parquet").write_bytes((folder / "edges.csv").read_bytes())
    assert "holds edges.csv and edges.parquet; keep the one that is meant" in message_of(folder, bare_paths)


def test_more_kinds_than_are_told_apart_are_refused(folder, bare_paths):
    rows = "".join(f"a1,p1,kind{number},1,2001,1,1\n" for number in range(260))
    assert "the column type has 262 different words" in message_of(write(folder, edges=EDGES + rows), bare_paths)


def test_sets_of_graphs_carry_the_columns_too(tmp_path, bare_paths):
    (tmp_path / "graphs.csv").write_text("id,label\ng1,0\ng2,1\ng3,0\ng4,1\n")
    (tmp_path / "nodes.csv").write_text(
        "id,graph,time,x\n" + "".join(f"n{node},g{node % 4 + 1},{node},1\n" for node in range(8))
    )
    (tmp_path / "edges.csv").write_text(
        "source,target,type,weight\n" + "".join(f"n{n},n{n + 4},{n % 2},{n + 1}\n" for n in range(4))
    )
    dataset = load(tmp_path, bare_paths, directed=True)
    assert [graph.edge_types.tolist() for graph in dataset.graphs] == [[0], [1], [0], [1]]
    assert [graph.edge_weights.tolist() for graph in dataset.graphs] == [[1], [2], [3], [4]]
    assert [graph.node_times.tolist() for graph in dataset.graphs] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert (dataset.num_edge_types, dataset.edge_type_names) == (2, ("0", "1"))


def test_types_along_paths_need_both_ways(folder, bare_paths):
    spec = GraphormerSpec(name="graphormer", edge_types=2)
    assert resolve_model(spec, load(folder, bare_paths)).edge_types == 2
    with pytest.raises(ModelInvalidError, match=r"leave dataset\.directed out"):
        resolve_model(spec, load(folder, bare_paths, directed=True))
