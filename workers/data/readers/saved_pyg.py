"""A user's own graph as a saved PyG object: ``torch.save(data, "mine.pt")`` of a ``Data`` or a ``HeteroData``.

    x, edge_index, y                          as PyG has them; y int (classes), bool or 0/1 columns, or numbers
    train_mask, val_mask, test_mask           [N] or [N, splits]; without them labelled nodes are split 60/20/20
    edge_weight, edge_type, edge_attr         weights, kinds and features of edges
    time, node_type                           of nodes; edge_time (or time) of edges

A pickle may run any code when it is read, so this reads tensors and PyG's own classes and nothing else
(``torch.load(weights_only=True)``). Edges are kept as they are: ``edge_index`` holds both ways where both are meant.

A ``HeteroData`` becomes one graph with types: the nodes of one type after the other, in its own order, the features of
each type in columns of their own (a type without any has one column of ones), relations as types of edges.
"""

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from workers.data.build import build_dataset
from workers.data.edge_columns import EdgeColumns, from_edge_table
from workers.data.features import compact, sparse_from_coordinates
from workers.data.graph import NO_LABEL, NO_TIME, Graph, GraphDataset, Task, has_label
from workers.data.splits import SPLIT_NOTE, split_from_members, stratified_split
from workers.errors import DatasetInvalidError

_PARTS = ("train_mask", "val_mask", "test_mask")


@dataclass
class _Nodes:
    """The nodes of one type."""

    name: str
    size: int
    store: Any
    first: int = 0


@dataclass
class _Flat:
    """A graph whose nodes and edges lie one type after the other."""

    nodes: list[_Nodes]
    relations: tuple[str, ...]
    ends: list[np.ndarray] = field(default_factory=list)  # int64 [2, e] each
    types: list[np.ndarray] = field(default_factory=list)
    edges: list[Any] = field(default_factory=list)  # the store of each

    @property
    def num_nodes(self) -> int:
        return sum(nodes.size for nodes in self.nodes)


def read_saved_pyg(path: Path, *, split: int = 0, directed: bool | None = None) -> GraphDataset:
    """Read one graph; ``directed`` False takes its edges both ways. Raises ``DatasetInvalidError``."""
    data = _load(path)
    typed = hasattr(data, "node_types")
    try:
        flat = _flatten(data) if typed else _one_type(data)
        owner = _labelled(flat, path=path)
        y, task, num_classes = _targets(owner.store.y, size=owner.size, path=path)
        parts, note = _split(owner, y=y, index=split, path=path)
        adjacency, columns = from_edge_table(
            *np.concatenate([np.zeros((2, 0), dtype=np.int64), *flat.ends], axis=1),
            num_nodes=flat.num_nodes,
            columns=_edge_columns(flat, typed=typed),
            directed=directed is not False,
        )
        graph = Graph(
            adjacency.indptr,
            adjacency.indices,
            features=_features(flat, path=path),
            y=_spread(y, owner=owner, flat=flat, nothing=NO_LABEL if y.dtype.kind == "i" else np.nan),
            split=_spread(parts, owner=owner, flat=flat, nothing=-1),
            **_node_columns(flat, typed=typed),
            **columns.fields(),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DatasetInvalidError):
            raise
        raise DatasetInvalidError(
            f"{path}: the object's parts do not fit together ({type(error).__name__}: {error}); PyG's"
            " `data.validate()` names most of what can be wrong",
            path=str(path),
        ) from error
    way = "both ways" if directed is False else "as they were saved"
    return build_dataset(
        path.stem,
        graphs=(graph,),
        num_classes=num_classes,
        task=task,
        edge_type_names=flat.relations,
        node_type_names=tuple(nodes.name for nodes in flat.nodes) if typed else (),
        notes=(note, f"edges {way}; self loops left out, duplicates merged", "features as given, not normalised"),
    )


def _load(path: Path) -> Any:
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    # what a pickled Data is made of: plain containers of its attributes
    parts = [DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    try:
        with torch.serialization.safe_globals(parts):
            found = torch.load(path, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise DatasetInvalidError(_why_unreadable(path, parts), path=str(path)) from error
    if isinstance(found, tuple) and len(found) == 3 and found[1] is None and found[2] in (Data, HeteroData):
        found = found[2].from_dict(found[0])  # what PyG's InMemoryDataset saves of one graph
    if not isinstance(found, Data | HeteroData):
        raise DatasetInvalidError(
            f"{path} holds a {type(found).__name__}; give one Data or HeteroData (sets of graphs are given as tables)",
            path=str(path),
        )
    return found


def _why_unreadable(path: Path, known: list[type]) -> str:
    import torch

    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in known}
    try:
        foreign = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - names)
    except Exception:  # whatever a reader of archives and pickles meets in a file that is none
        return f"{path} is no file of torch.save; save a Data or HeteroData with torch.save(data, {path.name!r})"
    return (
        f"{path} holds {', '.join(foreign[:5]) or 'more than tensors'}; reading that could run code that the file"
        " carries, so only tensors and PyG's Data and HeteroData are taken: save one of them, with arrays as tensors"
    )


def _one_type(data: Any) -> _Flat:
    kinds = _optional(data, "edge_type")
    count = int(kinds.max(initial=-1)) + 1 if kinds is not None else 0
    flat = _Flat([_Nodes("node", int(data.num_nodes), data)], tuple(str(kind) for kind in range(count)))
    flat.ends.append(_array(data.edge_index).astype(np.int64))
    flat.edges.append(data)
    if kinds is not None:
        flat.types.append(kinds)
    return flat


def _flatten(data: Any) -> _Flat:
    nodes, first = {}, 0
    for name in data.node_types:
        nodes[name] = _Nodes(name, int(data[name].num_nodes), data[name], first)
        first += nodes[name].size
    relations = tuple(dict.fromkeys(relation for _, relation, _ in data.edge_types))
    flat = _Flat([*nodes.values()], relations)
    for kind in data.edge_types:
        source, relation, target = kind
        ends = _array(data[kind].edge_index).astype(np.int64)
        for row, name in zip(ends, (source, target), strict=True):
            _check_range(row, size=nodes[name].size, kind=kind)
        flat.ends.append(ends + np.array([[nodes[source].first], [nodes[target].first]]))
        flat.types.append(np.full(ends.shape[1], relations.index(relation)))
        flat.edges.append(data[kind])
    return flat


def _check_range(ids: np.ndarray, *, size: int, kind: tuple[str, str, str]) -> None:
    """Before the types lie one after the other: a wrong id would then be a node of another type."""
    wrong = np.flatnonzero((ids < 0) | (ids >= size))
    if len(wrong):
        raise DatasetInvalidError(
            f"edge {wrong[0]} of {kind} names node {ids[wrong[0]]}, which does not exist: its type has {size} nodes",
            edge=int(wrong[0]),
        )


def _labelled(flat: _Flat, *, path: Path) -> _Nodes:
    owners = [nodes for nodes in flat.nodes if _optional(nodes.store, "y") is not None]
    if len(owners) != 1:
        found = ", ".join(nodes.name for nodes in owners) or "none"
        raise DatasetInvalidError(f"{path}: one type of nodes carries y, the labels; found {found}", path=str(path))
    return owners[0]


def _targets(y: Any, *, size: int, path: Path) -> tuple[np.ndarray, Task, int]:
    """(labels as ``Graph`` has them, the task, classes or columns)."""
    labels = _array(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu" else labels
    if len(labels) != size:
        raise DatasetInvalidError(f"{path}: {size} nodes but {len(labels)} rows of y", path=str(path))
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        classes = labels.astype(np.int64)
        classes[classes < 0] = NO_LABEL
        return classes, "classes", int(classes.max(initial=0)) + 1
    numbers = labels.astype(np.float32).reshape(size, -1)
    known = numbers[~np.isnan(numbers)]
    is_truth = labels.ndim == 2 and bool(np.isin(known, (0, 1)).all())
    return numbers, "multilabel" if is_truth else "regression", numbers.shape[1]


def _split(owner: _Nodes, *, y: np.ndarray, index: int, path: Path) -> tuple[np.ndarray, str]:
    masks = [_optional(owner.store, part) for part in _PARTS]
    if masks[0] is None:
        _check_split(index, count=1, path=path)
        known = np.where(has_label(y), 0, NO_LABEL)
        return stratified_split(y if y.ndim == 1 else known), SPLIT_NOTE
    count = masks[0].shape[1] if masks[0].ndim == 2 else 1
    _check_split(index, count=count, path=path)
    # a test mask may be shared by all splits, as in PyG's WikiCS
    chosen = [np.zeros(owner.size, dtype=bool) if m is None else m[:, index] if m.ndim == 2 else m for m in masks]
    train, validation, test = (mask.astype(bool) & has_label(y) for mask in chosen)
    note = f"saved masks, split {index} of {count}" if count > 1 else "saved masks"
    return split_from_members(owner.size, train=train, validation=validation, test=test), note


def _check_split(index: int, *, count: int, path: Path) -> None:
    if index >= count:
        raise DatasetInvalidError(f"{path} has {count} split(s); found split {index} in the spec", split=index)


def _features(flat: _Flat, *, path: Path) -> Any:
    """Block by block: each type's features in columns of their own, so that few are not zero."""
    rows, columns, values, width = [], [], [], 0
    for nodes in flat.nodes:
        x = _optional(nodes.store, "x")
        x = np.ones((nodes.size, 1), dtype=np.float32) if x is None else x.reshape(nodes.size, -1).astype(np.float32)
        row, column = np.nonzero(x)
        rows.append(row + nodes.first)
        columns.append(column + width)
        values.append(x[row, column])
        width += x.shape[1]
    cells = (np.concatenate(part) for part in (rows, columns, values))
    return compact(sparse_from_coordinates(*cells, shape=(flat.num_nodes, width)))


def _edge_columns(flat: _Flat, *, typed: bool) -> EdgeColumns:
    types = np.concatenate(flat.types) if flat.types else None
    if types is not None and (types.min(initial=0) < 0 or types.max(initial=0) > 253):
        raise DatasetInvalidError(f"edge types are 0 to 253; found {types.min()} to {types.max()}")
    features = _for_all_edges(flat, ("edge_attr",))
    return EdgeColumns(
        types=None if types is None else types.astype(np.uint8),
        weights=_as(_for_all_edges(flat, ("edge_weight",)), np.float32),
        times=_as(_for_all_edges(flat, ("edge_time", "time") if typed else ("edge_time",)), np.int64),
        features=None if features is None else features.reshape(len(features), -1).astype(np.float32),
    )


def _for_all_edges(flat: _Flat, names: tuple[str, ...]) -> np.ndarray | None:
    """A column that every type of edges has; None where one lacks it."""
    parts = [next((c for name in names if (c := _optional(store, name)) is not None), None) for store in flat.edges]
    if not parts or any(part is None for part in parts):
        return None
    for part, ends in zip(parts, flat.ends, strict=True):
        if len(part) != ends.shape[1]:
            raise DatasetInvalidError(f"{ends.shape[1]} edges but {len(part)} rows of {names[0]}")
    return np.concatenate(parts) if len({part.shape[1:] for part in parts}) == 1 else None


def _as(column: np.ndarray | None, dtype: type) -> np.ndarray | None:
    return None if column is None else column.reshape(len(column)).astype(dtype)


def _node_columns(flat: _Flat, *, typed: bool) -> dict[str, np.ndarray | None]:
    """Types, and times where some type has them; a node of another has none."""
    found = [_optional(nodes.store, "time") for nodes in flat.nodes]
    times = None
    if any(time is not None for time in found):
        times = np.concatenate(
            [
                np.full(nodes.size, NO_TIME) if time is None else time.reshape(nodes.size).astype(np.int64)
                for nodes, time in zip(flat.nodes, found, strict=True)
            ]
        )
    types = np.repeat(np.arange(len(flat.nodes)), [nodes.size for nodes in flat.nodes]) if typed else None
    if not typed:
        types = _optional(flat.nodes[0].store, "node_type")
    return {"node_types": None if types is None else types.astype(np.uint8), "node_times": times}


def _spread(rows: np.ndarray, *, owner: _Nodes, flat: _Flat, nothing: float) -> np.ndarray:
    """``rows`` of one type's nodes among those of all nodes."""
    everything = np.full((flat.num_nodes, *rows.shape[1:]), nothing, dtype=rows.dtype)
    everything[owner.first : owner.first + owner.size] = rows
    return everything


def _optional(store: Any, name: str) -> np.ndarray | None:
    value = store.get(name)
    return None if value is None else _array(value)


def _array(value: Any) -> np.ndarray:
    if value.is_sparse or value.layout is not value.new_empty(0).layout:
        value = value.to_dense()
    return value.numpy()
