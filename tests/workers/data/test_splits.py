import numpy as np
import pytest

from workers.data.graph import NO_LABEL, NO_SPLIT, TEST, TRAIN, VALIDATION
from workers.data.splits import split_from_members, stratified_split


@pytest.fixture
def y() -> np.ndarray:
    return np.repeat([0, 1, 2, NO_LABEL], [50, 100, 1, 20])


def test_each_class_is_divided_by_the_same_fractions(y):
    split = stratified_split(y)
    for label, counts in ((0, (30, 10, 10)), (1, (60, 20, 20))):
        assert tuple((split[y == label] == part).sum() for part in (TRAIN, VALIDATION, TEST)) == counts


def test_a_class_of_one_node_is_trained_on(y):
    assert stratified_split(y)[y == 2].tolist() == [TRAIN]


def test_nodes_without_a_label_are_in_no_part(y):
    assert (stratified_split(y)[y == NO_LABEL] == NO_SPLIT).all()


def test_the_seed_decides_the_split(y):
    assert np.array_equal(stratified_split(y, seed=1), stratified_split(y, seed=1))
    assert not np.array_equal(stratified_split(y, seed=1), stratified_split(y, seed=2))


def test_masks_and_ids_give_the_same_split():
    masks = {"train": np.array([1, 0, 0, 0], bool), "validation": np.array([0, 1, 0, 0], bool)}
    by_mask = split_from_members(4, **masks, test=np.array([0, 0, 1, 0], bool))
    by_id = split_from_members(4, train=np.array([0]), validation=np.array([1]), test=np.array([2]))
    assert by_mask.tolist() == by_id.tolist() == [TRAIN, VALIDATION, TEST, NO_SPLIT]
