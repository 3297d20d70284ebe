"""Sets that need no file: Zachary's karate club (from PyG) and scikit-learn's digits as a nearest-neighbour graph."""

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures, compact
from workers.data.graph import NO_LABEL, TEST, TRAIN, VALIDATION, Graph, GraphDataset
from workers.data.splits import SPLIT_NOTE, stratified_split

DIGITS_NEIGHBOURS = 8


def read_karate(name: str) -> GraphDataset:
    """34 members, 4 communities (Zachary 1977; labels of Kipf & Welling 2017), one training node per community."""
    from torch_geometric.datasets import KarateClub

    data = KarateClub()[0]
    y = data.y.numpy().astype(np.int64)
    train = data.train_mask.numpy()
    half = stratified_split(np.where(train, NO_LABEL, y), fractions=(0.5, 0.0)) == TRAIN
    split = np.where(train, TRAIN, np.where(half, VALIDATION, TEST)).astype(np.int8)
    adjacency = from_edges(*data.edge_index.numpy(), num_nodes=len(y))
    graph = Graph(
        adjacency.indptr,
        adjacency.indices,
        features=compact(DenseFeatures(data.x.numpy().astype(np.float32))),
        y=y,
        split=split,
    )
    notes = ("one training node per community; the rest is half validation, half test, stratified, seed 0",)
    return build_dataset(name, graphs=(graph,), num_classes=4, notes=notes)


def read_digits_knn(name: str) -> GraphDataset:
    """1,797 handwritten digits of 8 x 8 pixels; each is joined to its 8 nearest by Euclidean distance, both ways."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import kneighbors_graph

    digits = load_digits()
    pixels = (digits.data / 16.0).astype(np.float32)  # 16 grey levels -> 0..1
    y = digits.target.astype(np.int64)
    sources, targets = kneighbors_graph(pixels, n_neighbors=DIGITS_NEIGHBOURS, include_self=False).nonzero()
    adjacency = from_edges(sources, targets, num_nodes=len(y))
    graph = Graph(adjacency.indptr, adjacency.indices, features=DenseFeatures(pixels), y=y, split=stratified_split(y))
    notes = (
        f"an edge joins each image to its {DIGITS_NEIGHBOURS} nearest by pixels, stored both ways",
        SPLIT_NOTE,
    )
    return build_dataset(
        name, graphs=(graph,), num_classes=10, class_names=tuple(str(digit) for digit in range(10)), notes=notes
    )
