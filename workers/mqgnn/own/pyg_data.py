"""From PyG's ``Data`` to the graph that is sampled: the same features and edges, labels and masks as parts of a split.

x            float [N, F]; may be left out where rows are learned for each node
edge_index   int [2, E], as given: directed, doubles and self loops stay; or adj_t, the transposed matrix
y            classes int [N], yes-or-no labels int or bool [N, T], numbers float [N] or [N, T]
train_mask, val_mask, test_mask   bool [N]
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.data.build import content_fingerprint
from workers.data.features import DenseFeatures
from workers.data.graph import NO_LABEL, NO_SPLIT, SPLIT_NAMES, Graph, GraphDataset, Task
from workers.errors import DatasetInvalidError
from workers.mqgnn.sampling.csc import csc_of_edges


def takes_matrix(data: Any) -> bool:
    """Whether modules on ``data`` are given ``adj_t`` in the place of ``edge_index``."""
    return getattr(data, "edge_index", None) is None and getattr(data, "adj_t", None) is not None


def dataset_of(data: Any, *, task: Task | None = None, needs_features: bool = True) -> GraphDataset:
    """One graph with what ``data`` says; ``task`` where the labels leave it open.

    Raises ``DatasetInvalidError`` that names what is missing or does not fit.
    """
    x = features_of(data, needs_features=needs_features)
    sources, targets = _edges(data)
    csc = csc_of_edges(sources, targets, num_nodes=len(x))
    y, task, num_classes = _labels(data, num_nodes=len(x), task=task)
    graph = Graph(
        indptr=csc.indptr,
        indices=csc.indices,
        features=DenseFeatures(np.ascontiguousarray(x.float().numpy())),
        y=y,
        split=_split(data, num_nodes=len(x)),
    )
    if (place := graph.features.first_not_finite()) is not None:
        raise DatasetInvalidError(f"data.x: feature {place[1]} of node {place[0]} is not finite (NaN or infinite)")
    return GraphDataset(
        name="data",
        graphs=(graph,),
        num_features=graph.features.num_features,
        num_classes=num_classes,
        fingerprint=content_fingerprint((graph,), num_classes=num_classes, names=()),
        task=task,
    )


def features_of(data: Any, *, where: str = "data", needs_features: bool = True) -> Tensor:
    """``x`` of ``data``, a ``Data`` or the part ``where`` of a ``HeteroData``; no columns if there is none."""
    if not needs_features and getattr(data, "x", None) is None:
        return torch.zeros(data.num_nodes, 0)
    x = _tensor(data, "x", where=where)
    if x.dim() != 2 or x.is_sparse:
        raise DatasetInvalidError(f"{where}.x is a matrix of one row for each node; found {tuple(x.shape)}, {x.layout}")
    return x


def _tensor(data: Any, name: str, *, where: str = "data") -> Tensor:
    found = getattr(data, name, None)
    if not isinstance(found, Tensor):
        raise DatasetInvalidError(f"{where}.{name} is needed, a tensor; found {type(found).__name__}")
    return found.detach().cpu()


def _edges(data: Any) -> tuple[np.ndarray, np.ndarray]:
    if not takes_matrix(data):
        edge_index = _tensor(data, "edge_index")
        if edge_index.dim() != 2 or len(edge_index) != 2:
            raise DatasetInvalidError(f"data.edge_index has two rows; found the shape {tuple(edge_index.shape)}")
        return edge_index[0].numpy(), edge_index[1].numpy()
    adj_t = data.adj_t
    if isinstance(adj_t, Tensor):
        targets, sources = adj_t.to_sparse_coo().coalesce().indices().cpu()
    else:  # torch_sparse's
        targets, sources, _ = (part if part is None else part.cpu() for part in adj_t.coo())
    return sources.numpy(), targets.numpy()


def _labels(data: Any, *, num_nodes: int, task: Task | None) -> tuple[np.ndarray, Task, int]:
    """(labels as ``Graph`` has them, task, classes or outputs)."""
    if getattr(data, "y", None) is None:
        return np.full(num_nodes, NO_LABEL, dtype=np.int64), "classes", 1
    y = _tensor(data, "y")
    if len(y) != num_nodes:
        raise DatasetInvalidError(f"data.y has {len(y)} rows; there are {num_nodes} nodes")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if task is None and not y.is_floating_point():
        task = "classes" if y.dim() == 1 else "multilabel"
    elif task is None:
        is_yes_or_no = y.dim() == 2 and bool(((y == 0) | (y == 1) | y.isnan()).all())
        task = "multilabel" if is_yes_or_no else "regression"
    if task != "classes":
        rows = y.float().reshape(num_nodes, -1).numpy()
        return rows, task, rows.shape[1]
    if y.dim() != 1:
        raise DatasetInvalidError(f"classes are one number for each node; found data.y of shape {tuple(y.shape)}")
    classes = torch.nan_to_num(y, nan=NO_LABEL).long().clamp(min=NO_LABEL).numpy()
    return classes, task, int(classes.max(initial=0)) + 1


def _split(data: Any, *, num_nodes: int) -> np.ndarray:
    split = np.full(num_nodes, NO_SPLIT, dtype=np.int8)
    for part, name in reversed(list(enumerate(SPLIT_NAMES))):
        mask = getattr(data, f"{name}_mask", None)
        if mask is None:
            continue
        if mask.dim() != 1 or len(mask) != num_nodes:
            raise DatasetInvalidError(
                f"data.{name}_mask is one yes or no for each of {num_nodes} nodes; found the shape"
                f" {tuple(mask.shape)}: choose one column of several splits"
            )
        chosen = mask.cpu().numpy().astype(bool)
        if (taken := chosen & (split != NO_SPLIT)).any():
            raise DatasetInvalidError(
                f"node {int(taken.argmax())} is in data.{name}_mask and in data.{SPLIT_NAMES[split[taken.argmax()]]}"
                "_mask: a node is in one part"
            )
        split[chosen] = part
    return split
