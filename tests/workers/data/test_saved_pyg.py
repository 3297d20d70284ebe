"""A PyG object that was saved: everything that it carries, and nothing that it could run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import DatasetInvalidError, DatasetNotFoundError
from workers.spec import DatasetSpec


def saved(data: object, folder: Path) -> Path:
    torch.save(data, folder / "mine.pt")
    return folder / "mine.pt"


def load(path: Path, paths: DataPaths, **spec):
    return load_dataset(DatasetSpec(path=str(path), **spec), paths=paths)


def plain(**changes) -> Data:
    columns = {
        "x": torch.arange(8.0).reshape(4, 2) + 1,
        "edge_index": torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]]),
        "y": torch.tensor([0, 1, 0, -1]),
        "edge_weight": torch.tensor([1.0, 2, 3, 4]),
        "edge_type": torch.tensor([0, 1, 2, 0]),
        "edge_attr": torch.arange(4.0),
        "edge_time": torch.tensor([5, 6, 7, 8]),
        "time": torch.tensor([1, 2, 3, 4]),
    }
    return Data(**{**columns, **changes})


def papers() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.arange(6.0).reshape(3, 2) + 1
    data["paper"].y = torch.tensor([0, 1, 0])
    data["paper"].time = torch.tensor([2001, 2002, 2003])
    for part, mask in zip(("train", "val", "test"), torch.eye(3, dtype=torch.bool), strict=True):
        data["paper"][f"{part}_mask"] = mask
    data["author"].num_nodes = 2
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [0, 2]])
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1, 2], [0, 0]])
    return data


@pytest.mark.parametrize("form", ["object", "collated"])
def test_a_data_keeps_its_edges_as_they_are_with_all_their_columns(form, tmp_path, bare_paths):
    data = plain()
    dataset = load(saved(data if form == "object" else (data.to_dict(), None, Data), tmp_path), bare_paths)
    (graph,) = dataset.graphs
    assert dataset.name == "mine"
    assert graph.indptr.tolist() == [0, 0, 1, 2, 3]  # the self loop is dropped
    assert graph.indices.tolist() == [0, 1, 2]
    assert graph.edge_weights.tolist() == [1, 2, 3]
    assert graph.edge_types.tolist() == [0, 1, 2]
    assert graph.edge_times.tolist() == [5, 6, 7]
    assert graph.edge_features.tolist() == [[0], [1], [2]]
    assert graph.node_times.tolist() == [1, 2, 3, 4]
    assert graph.y.tolist() == [0, 1, 0, -1]
    assert graph.split[3] == -1
    assert load(tmp_path / "mine.pt", bare_paths, directed=False).num_edges == 6


def test_a_hetero_data_becomes_one_graph_with_types(tmp_path, bare_paths):
    dataset = load(saved(papers(), tmp_path), bare_paths)
    (graph,) = dataset.graphs
    assert (dataset.node_type_names, dataset.edge_type_names) == (("paper", "author"), ("writes", "cites"))
    assert graph.node_types.tolist() == [0, 0, 0, 1, 1]
    assert graph.indptr.tolist() == [0, 3, 3, 4, 4, 4]
    assert graph.indices.tolist() == [1, 2, 3, 4]
    assert graph.edge_types.tolist() == [1, 1, 0, 0]
    assert graph.y.tolist() == [0, 1, 0, -1, -1]
    assert graph.split.tolist() == [0, 1, 2, -1, -1]
    assert graph.node_times[:3].tolist() == [2001, 2002, 2003]
    rows = graph.features.gather(np.arange(5))
    assert rows.tolist() == [[1, 2, 0], [3, 4, 0], [5, 6, 0], [0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("y", "task", "outputs"),
    [
        (torch.tensor([[0], [1], [2], [0]]), "classes", 3),
        (torch.tensor([[0.0, 1], [1, 1], [0, 0], [1, 0]]), "multilabel", 2),
        (torch.tensor([0.5, 1, 2, 3]), "regression", 1),
    ],
)
def test_labels_say_what_is_to_be_predicted(y, task, outputs, tmp_path, bare_paths):
    dataset = load(saved(plain(y=y), tmp_path), bare_paths)
    assert (dataset.task, dataset.num_classes) == (task, outputs)


def test_masks_may_be_of_several_splits(tmp_path, bare_paths):
    eye = torch.eye(3, dtype=torch.bool)
    rows = torch.cat((eye, torch.zeros(1, 3, dtype=torch.bool)))
    masks = {"train_mask": rows, "val_mask": rows.roll(1, 1), "test_mask": rows.roll(2, 1)}
    path = saved(plain(y=torch.tensor([0, 1, 0, 1]), **masks), tmp_path)
    assert load(path, bare_paths, split=0).graphs[0].split.tolist() == [0, 2, 1, -1]
    assert load(path, bare_paths, split=1).graphs[0].split.tolist() == [1, 0, 2, -1]
    with pytest.raises(DatasetInvalidError, match="has 3 split"):
        load(path, bare_paths, split=3)


RAN = []


class Runs:
    """What a hostile file would hold."""

    def __reduce__(self):
        return RAN.append, (1,)


@pytest.mark.parametrize("data", [Runs(), plain(extra=Runs()), {"x": Path("a")}])
def test_nothing_that_a_file_carries_is_run(data, tmp_path, bare_paths):
    path = saved(data, tmp_path)
    RAN.clear()
    with pytest.raises(DatasetInvalidError, match=r"holds .*could run code that the file carries"):
        load(path, bare_paths)
    assert RAN == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"x": torch.ones(2)}, "holds a dict; give one Data or HeteroData"),
        (plain(y=None), "one type of nodes carries y, the labels; found none"),
        (plain(y=torch.tensor([0, 1])), "4 nodes but 2 rows of y"),
        (plain(edge_index=torch.tensor([[0, 9, 1, 2], [1, 2, 3, 0]])), "edge 1 .*names node 9"),
        (plain(edge_weight=torch.ones(3)), "4 edges but 3 rows of edge_weight"),
        (plain(edge_type=torch.tensor([0, 1, 2, 300])), "edge types are 0 to 253; found 0 to 300"),
        (plain(time=torch.ones(3)), "parts do not fit together"),
    ],
)
def test_an_object_that_does_not_fit_is_told_what_is_wrong(data, words, tmp_path, bare_paths):
    with pytest.raises(DatasetInvalidError, match=words):
        load(saved(data, tmp_path), bare_paths)


def test_g14_a_wrong_id_of_one_type_is_not_taken_for_a_node_of_the_next(tmp_path, bare_paths):
    """Case G14: ids out of range; papers 0 to 2 lie before the authors, so paper 3 would be an author."""
    data = papers()
    data["paper", "cites", "paper"].edge_index = torch.tensor([[1, 3], [0, 0]])
    with pytest.raises(DatasetInvalidError, match=r"edge 1 of \('paper', 'cites', 'paper'\) names node 3.* 3 nodes"):
        load(saved(data, tmp_path), bare_paths)


def test_a_file_that_is_none_or_not_there_is_said(tmp_path, bare_paths):
    (tmp_path / "mine.pt").write_text("no archive")
    with pytest.raises(DatasetInvalidError, match=r"is no file of torch\.save"):
        load(tmp_path / "mine.pt", bare_paths)
    with pytest.raises(DatasetNotFoundError, match="there is no file"):
        load(tmp_path / "other.pt", bare_paths)
