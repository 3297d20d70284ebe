"""From a reader's graphs to a checked data set with a fingerprint: the one door between readers and the store."""

import hashlib

import numpy as np

from workers.data.checks import check_dataset
from workers.data.graph import Graph, GraphDataset, Level, Task


def build_dataset(
    name: str,
    *,
    graphs: tuple[Graph, ...],
    num_classes: int,
    class_names: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    best_accuracy: float | None = None,
    level: Level = "node",
    task: Task = "classes",
    edge_type_names: tuple[str, ...] = (),
    node_type_names: tuple[str, ...] = (),
) -> GraphDataset:
    """Name, count and fingerprint ``graphs``. Raises ``DatasetInvalidError`` where they break a rule of ``checks``."""
    dataset = GraphDataset(
        name=name,
        graphs=graphs,
        num_features=graphs[0].features.num_features if graphs else 0,
        num_classes=num_classes,
        fingerprint=content_fingerprint(
            graphs, num_classes=num_classes, names=(class_names, edge_type_names, node_type_names)
        ),
        class_names=class_names,
        notes=notes,
        best_accuracy=best_accuracy,
        level=level,
        task=task,
        num_edge_types=max((_largest(graph.edge_types) for graph in graphs), default=-1) + 1,
        edge_type_names=edge_type_names,
        node_type_names=node_type_names,
    )
    check_dataset(dataset)
    return dataset


def content_fingerprint(graphs: tuple[Graph, ...], *, num_classes: int, names: tuple[tuple[str, ...], ...]) -> str:
    """Hex digest (128 bits of SHA-256) of everything that training can see; ``names`` are those of classes and types.

    The set's own name and its notes do not count.
    """
    digest = hashlib.sha256(repr((num_classes, names)).encode())
    for graph in graphs:
        for part, array in graph.arrays().items():
            digest.update(repr((part, array.dtype.str, array.shape)).encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _largest(types: np.ndarray | None) -> int:
    return -1 if types is None else int(types.max(initial=0))
