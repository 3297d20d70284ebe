"""A graph to rehearse on: what training uses is used once before anything is measured (``measure``)."""

import numpy as np

from workers.data.features import DenseFeatures
from workers.data.graph import TRAIN, Graph

_NUM_NODES = 64
_NUM_FEATURES = 8


def ring_graph() -> Graph:
    """A ring of 64 nodes with 8 features, two classes in turn, all nodes to train on."""
    nodes = np.arange(_NUM_NODES)
    neighbors = np.sort(np.stack((np.roll(nodes, 1), np.roll(nodes, -1)), axis=1), axis=1)
    return Graph(
        indptr=2 * np.arange(_NUM_NODES + 1, dtype=np.int64),
        indices=neighbors.astype(np.int32).ravel(),
        features=DenseFeatures(np.ones((_NUM_NODES, _NUM_FEATURES), dtype=np.float32)),
        y=nodes % 2,
        split=np.full(_NUM_NODES, TRAIN, dtype=np.int8),
    )
