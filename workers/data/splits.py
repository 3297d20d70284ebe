"""Splits made by us, where none is shipped: stratified, seeded, and said in the data set's notes."""

import numpy as np

from workers.data.graph import NO_LABEL, NO_SPLIT, TEST, TRAIN, VALIDATION

SPLIT_SEED = 0
SPLIT_NOTE = f"split made here: stratified 60/20/20 of the labelled nodes, seed {SPLIT_SEED}"


def stratified_split(
    y: np.ndarray, *, seed: int = SPLIT_SEED, fractions: tuple[float, float] = (0.6, 0.2)
) -> np.ndarray:
    """int8 [N]: of each class, ``fractions`` go to training and validation and the rest to test; unlabelled to none.

    Every class with a node has at least one in training.
    """
    generator = np.random.default_rng(seed)
    split = np.full(len(y), NO_SPLIT, dtype=np.int8)
    for label in np.unique(y[y != NO_LABEL]):
        nodes = generator.permutation(np.flatnonzero(y == label))
        num_train = max(1, round(fractions[0] * len(nodes)))
        num_validation = round(fractions[1] * len(nodes))
        split[nodes[:num_train]] = TRAIN
        split[nodes[num_train : num_train + num_validation]] = VALIDATION
        split[nodes[num_train + num_validation :]] = TEST
    return split


def split_from_members(num_nodes: int, *, train: np.ndarray, validation: np.ndarray, test: np.ndarray) -> np.ndarray:
    """int8 [N] from three lists of node ids or three boolean masks."""
    split = np.full(num_nodes, NO_SPLIT, dtype=np.int8)
    split[train] = TRAIN
    split[validation] = VALIDATION
    split[test] = TEST
    return split
