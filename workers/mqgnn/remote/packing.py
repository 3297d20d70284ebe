"""A mini-batch as plain arrays and back: arrays cross processes without being copied, tensors would not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workers.models.blocks import InPlace
from workers.mqgnn.minibatch import MiniBatch


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """The fields of a mini-batch of ``kind``: its tensors as ``arrays``, all else as ``values``.

    Features that are read in place are in neither: who unpacks has them.
    """

    kind: type[MiniBatch]
    arrays: dict[str, np.ndarray]
    values: dict[str, Any]


def pack(batch: MiniBatch) -> PackedBatch:
    """``batch``, in host memory, sharing its memory."""
    fields = {name: value for name, value in vars(batch).items() if not isinstance(value, InPlace)}
    arrays = {name: value.numpy() for name, value in fields.items() if isinstance(value, Tensor)}
    return PackedBatch(type(batch), arrays, {name: fields[name] for name in fields.keys() - arrays.keys()})


def unpack(packed: PackedBatch, *, in_place: InPlace | None) -> MiniBatch:
    """The mini-batch, in the memory that holds ``packed``; ``in_place`` are the features where they are not in it."""
    tensors: dict[str, Any] = {name: torch.from_numpy(_own(array)) for name, array in packed.arrays.items()}
    if "x" not in tensors:
        assert in_place is not None, "an actor leaves out the features that its replica reads in place"
        tensors["x"] = in_place
    return packed.kind(**tensors, **packed.values)


class _Owned:
    """Says of an array's memory that it may be written to, and keeps it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _own(array: np.ndarray) -> np.ndarray:
    """``array`` as its only reader may use it: what comes from shared memory is marked for many, and torch warns."""
    return array if array.flags.writeable else np.asarray(_Owned(array))
