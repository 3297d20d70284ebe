import warnings
from dataclasses import replace

import pytest
import torch

from tests.workers.mqgnn.remote.played_actors import sent
from tests.workers.mqgnn.test_preparation import prepare
from workers.models.blocks import InPlace
from workers.mqgnn.link_batches import LinkBatch
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.remote.packing import pack, unpack
from workers.mqgnn.seed_order import BatchTask


def batch() -> MiniBatch:
    return prepare(BatchTask(epoch=1, batch=0))


def test_a_mini_batch_comes_out_as_it_went_in() -> None:
    one = batch()
    other = unpack(sent(pack(one)), in_place=None)
    assert vars(one).keys() == vars(other).keys()
    for name, value in vars(one).items():
        arrived = getattr(other, name)
        if isinstance(value, torch.Tensor):
            assert (arrived.dtype, arrived.shape) == (value.dtype, value.shape)
            assert torch.equal(arrived, value)
        else:
            assert arrived == value


def test_its_class_and_the_fields_of_that_come_along() -> None:
    links = LinkBatch(**vars(batch()), sources=torch.arange(3), targets=torch.arange(6).view(3, 2))
    arrived = unpack(sent(pack(links)), in_place=None)
    assert isinstance(arrived, LinkBatch)
    assert torch.equal(arrived.targets, links.targets)


def test_arrays_are_not_copied_on_either_side() -> None:
    one = batch()
    packed = pack(one)
    assert packed.arrays["x"].ctypes.data == one.x.data_ptr()
    received = sent(packed)
    assert unpack(received, in_place=None).x.data_ptr() == received.arrays["x"].ctypes.data


def test_memory_that_is_marked_as_shared_is_taken_without_a_warning_and_outlives_the_message() -> None:
    received = sent(pack(batch()))
    assert not received.arrays["x"].flags.writeable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrived = unpack(received, in_place=None)
    expected = batch().x
    del received
    assert torch.equal(arrived.x, expected)


def test_features_that_are_read_in_place_stay_where_they_are() -> None:
    features = InPlace(torch.ones(300, 4), degrees=torch.ones(300, dtype=torch.int32))
    packed = pack(replace(batch(), x=features))
    assert "x" not in packed.arrays | packed.values
    assert unpack(sent(packed), in_place=features).x is features
    with pytest.raises(AssertionError, match="leaves out the features"):
        unpack(packed, in_place=None)
