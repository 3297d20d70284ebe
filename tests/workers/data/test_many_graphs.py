"""Sets of many graphs: cut from long arrays, stored, and read from published and from a user's own files."""

import numpy as np
import pytest

from workers.data.build import build_dataset
from workers.data.datasets import load_dataset
from workers.data.edge_columns import EdgeColumns
from workers.data.features import DenseFeatures
from workers.data.readers.many_graphs import cut_graphs, offsets_of
from workers.data.store import open_or_prepare
from workers.errors import DatasetInvalidError
from workers.spec import DatasetSpec

# name: graphs, nodes, directed entries, features, outputs, task, kinds of edges, (train, validation, test)
PUBLISHED = {
    "MUTAG": (188, 3371, 7442, 7, 2, "classes", 4, (113, 38, 37)),
    "ENZYMES": (600, 19580, 74564, 21, 6, "classes", 0, (486, 54, 60)),
    "PROTEINS": (1113, 43471, 162088, 4, 2, "classes", 0, (900, 101, 112)),
    "Mutagenicity": (4337, 131488, 266894, 14, 2, "classes", 3, (2603, 867, 867)),
    "ESOL": (1128, 14991, 30856, 30, 1, "regression", 10, (902, 113, 113)),
}


def made_up_set(*, y: np.ndarray, task: str = "classes", num_classes: int = 2):
    """Three graphs of 3, 1 and 4 nodes; the type of an edge is the smaller of its ends, counted in the graph."""
    sources, targets = np.array([1, 2, 4, 7, 6, 6]), np.array([0, 1, 5, 6, 5, 5])
    offsets = offsets_of([3, 1, 4])
    first = np.array([0, 0, 0, 3, 4, 4, 4, 4])[targets]
    graphs = cut_graphs(
        node_offsets=offsets,
        sources=sources,
        targets=targets,
        features=DenseFeatures(np.arange(16, dtype=np.float32).reshape(8, 2)),
        y=y,
        split=np.array([0, 1, 2], dtype=np.int8),
        columns=EdgeColumns(types=(np.minimum(sources, targets) - first).astype(np.uint8)),
    )
    return build_dataset("made up", graphs=graphs, num_classes=num_classes, level="graph", task=task)


def test_graphs_are_cut_with_their_own_node_numbers_and_every_edge_keeps_its_type():
    dataset = made_up_set(y=np.array([0, 1, 1]))
    assert [graph.num_nodes for graph in dataset.graphs] == [3, 1, 4]
    assert dataset.graphs[2].features.gather(np.array([0])).tolist() == [[8.0, 9.0]]
    for graph in dataset.graphs:
        targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
        assert np.array_equal(graph.edge_types, np.minimum(targets, graph.indices))
    assert dataset.graphs[2].indices.tolist() == [1, 0, 2, 1, 3, 2]
    assert (dataset.num_edge_types, dataset.level) == (3, "graph")


@pytest.mark.parametrize(
    ("task", "y", "num_outputs"),
    [
        ("classes", np.array([0, 1, 1]), 2),
        ("multilabel", np.array([[0, 1], [1, np.nan], [0, 0]], dtype=np.float32), 2),
        ("regression", np.array([[0.5], [-2], [3]], dtype=np.float32), 1),
    ],
)
def test_a_set_of_graphs_is_opened_as_it_was_built(tmp_path, task, y, num_outputs):
    built = made_up_set(y=y, task=task, num_classes=num_outputs)
    opened = open_or_prepare(tmp_path, key="set", build=lambda: built)
    assert (opened.level, opened.task, opened.num_edge_types) == ("graph", task, 3)
    for one, other in zip(opened.graphs, built.graphs, strict=True):
        assert one.arrays().keys() == other.arrays().keys()
        for name, array in one.arrays().items():
            assert np.array_equal(array, other.arrays()[name], equal_nan=array.dtype.kind == "f"), name
            assert array.dtype == other.arrays()[name].dtype


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_of_graphs_has_its_size(name, real_paths):
    dataset = load_dataset(DatasetSpec(name=name), paths=real_paths)
    split = np.concatenate([graph.split for graph in dataset.graphs])
    assert (
        len(dataset.graphs),
        dataset.num_nodes,
        dataset.num_edges,
        dataset.num_features,
        dataset.num_classes,
        dataset.task,
        dataset.num_edge_types,
        tuple(np.bincount(split, minlength=3).tolist()),
    ) == PUBLISHED[name]


@pytest.mark.parametrize(("name", "num_attributes"), [("ENZYMES", 18), ("PROTEINS", 1)])
def test_attributes_are_scaled_beside_one_column_per_label(name, num_attributes, real_paths):
    graphs = load_dataset(DatasetSpec(name=name), paths=real_paths).graphs
    x = np.concatenate([graph.features.gather(np.arange(graph.num_nodes)) for graph in graphs])
    assert x[:, :num_attributes].mean(axis=0) == pytest.approx(np.zeros(num_attributes), abs=1e-3)
    assert x[:, :num_attributes].std(axis=0) == pytest.approx(np.ones(num_attributes), abs=1e-3)
    assert (x[:, num_attributes:].sum(axis=1) == 1).all()
    assert np.isin(x[:, num_attributes:], (0, 1)).all()


def test_molecules_are_those_that_pyg_builds(real_paths):
    from torch_geometric.utils import from_smiles

    dataset = load_dataset(DatasetSpec(name="ESOL"), paths=real_paths)
    fenfuram, graph = from_smiles("Cc1occc1C(=O)Nc2ccccc2"), dataset.graphs[1]  # the second row of the file
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    assert set(zip(graph.indices.tolist(), targets.tolist(), strict=True)) == set(
        zip(*fenfuram.edge_index.tolist(), strict=True)
    )
    atoms = graph.features.gather(np.arange(graph.num_nodes))
    assert (atoms.sum(axis=1) == 9).all()
    same = (fenfuram.x[:, None] == fenfuram.x[None]).sum(dim=2).numpy()
    assert np.array_equal(atoms @ atoms.T, same)
    assert graph.y.tolist() == [[pytest.approx(-3.3)]]


def test_the_folds_of_proteins_test_every_graph_once(real_paths):
    tested = np.zeros(1113, dtype=int)
    for split in range(10):
        dataset = load_dataset(DatasetSpec(name="PROTEINS", split=split), paths=real_paths)
        tested += [int(graph.split[0] == 2) for graph in dataset.graphs]
    assert tested.min() == 1
    assert tested.sum() <= 1117


GOOD = {
    "graphs.csv": "id,label,split\na,yes,train\nb,no,val\nc,,\n",
    "nodes.csv": "id,graph,f\n1,a,0.5\n2,b,1\n3,a,2\n4,c,3\n",
    "edges.csv": "source,target\n1,3\n",
}


def write(folder, **changed: str):
    folder.mkdir()
    for name, text in (GOOD | {f"{stem}.csv": text for stem, text in changed.items()}).items():
        (folder / name).write_text(text)
    return DatasetSpec(path=str(folder))


def test_own_graphs_are_read_with_their_nodes_in_the_order_of_the_file(bare_paths, tmp_path):
    dataset = load_dataset(write(tmp_path / "mine"), paths=bare_paths)
    assert (dataset.level, dataset.task, dataset.class_names) == ("graph", "classes", ("no", "yes"))
    assert [graph.y.tolist() for graph in dataset.graphs] == [[1], [0], [-1]]
    assert [graph.split.tolist() for graph in dataset.graphs] == [[0], [1], [-1]]
    assert dataset.graphs[0].features.gather(np.arange(2)).tolist() == [[0.5], [2.0]]
    assert dataset.graphs[0].indices.tolist() == [1, 0]


def test_own_graphs_with_numbers_are_a_regression(bare_paths, tmp_path):
    graphs = "id,label\n" + "".join(f"g{n},{n / 2}\n" for n in range(10))
    nodes = "id,graph,f\n" + "".join(f"{n},g{n},1\n" for n in range(10))
    dataset = load_dataset(
        write(tmp_path / "mine", graphs=graphs, nodes=nodes, edges="source,target\n1,1\n"), paths=bare_paths
    )
    assert (dataset.task, dataset.num_classes) == ("regression", 1)
    assert dataset.graphs[3].y.tolist() == [[1.5]]
    assert np.bincount([graph.split[0] for graph in dataset.graphs]).tolist() == [6, 2, 2]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"edges": "source,target\n1,3\n1,2\n"}, r"edges.csv, row 3: the edge '1' -> '2' joins nodes of two graphs"),
        ({"edges": "source,target\n1,9\n"}, r"edges.csv, row 2: target '9' is not an id of nodes.csv"),
        ({"nodes": "id,graph,f\n1,a,1\n2,b,1\n3,z,1\n"}, r"nodes.csv, row 4: graph 'z' is not an id of graphs.csv"),
        ({"nodes": "id,graph,f\n1,a,1\n2,b,1\n3,a,x\n4,c,1\n"}, r"nodes.csv, row 4: feature 'f' is 'x'"),
        ({"nodes": "id,graph,f\n1,a,1\n2,b,1\n3,a,1\n"}, r"graphs.csv, row 4: graph 'c' has no node in nodes.csv"),
        ({"graphs": "id,label,split\na,x,train\nb,y,dev\nc,,\n"}, r"graphs.csv, row 3: split 'dev' is none of"),
        ({"graphs": "id,label,split\na,x,train\nb,y,val\nc,,test\n"}, r"graphs.csv, row 4: a graph in 'test' needs"),
        (
            {"graphs": "id,label,split\na,x,train\na,y,val\nc,,\n"},
            r"graphs.csv, row 3: id 'a' was given already in row 2",
        ),
        ({"splits": "id,split\n1,train\n"}, r"splits.csv: parts of whole graphs stand in the column split"),
    ],
)
def test_faults_of_own_graphs_are_named_by_file_and_row(bare_paths, tmp_path, changed, said):
    with pytest.raises(DatasetInvalidError, match=said):
        load_dataset(write(tmp_path / "mine", **changed), paths=bare_paths)
