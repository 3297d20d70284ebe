"""A loss that is no number ends a run on every rank alike, and the message says where it came from."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from workers.comm.axis import Axis
from workers.errors import TrainingDivergedError

# A unit's name and the ranks on which a number of it was none.
BadUnit = tuple[str, tuple[int, ...]]


def sum_shares(
    shares: Sequence[float], *, ranks: Sequence[int], step: int, find_unit: Callable[[], BadUnit] | None = None
) -> float:
    """The loss of optimiser step ``step`` over the global batch, from the share of each of ``ranks``.

    Raises ``TrainingDivergedError``, naming the ranks whose share is NaN or infinite, and the unit that ``find_unit``,
    called on all ranks alike, finds to be the first with such a number.
    """
    diverged = {rank: share for rank, share in zip(ranks, shares, strict=True) if not math.isfinite(share)}
    if diverged:
        unit, sources = ("", ()) if find_unit is None else find_unit()
        raise TrainingDivergedError(
            f"the loss became {next(iter(diverged.values()))} in step {step} on rank {_names(diverged)}"
            f"{_came_from(unit, sources)}; try a lower learning_rate, and look at the features of the nodes there",
            step=step,
            ranks=[*diverged],
            unit=unit,
        )
    return math.fsum(shares)


def check_finite(tensors: Mapping[str, Tensor], *, names: Sequence[str], axis: Axis, step: int) -> None:
    """Refuse to keep a model that is no good: ``tensors`` are this rank's part of it, ``names`` all there are.

    Collective over ``axis``. A gradient that overflowed in the step before shows here first. Raises
    ``TrainingDivergedError`` on all ranks.
    """
    bad = [name for name, tensor in tensors.items() if not torch.isfinite(_local(tensor)).all()]
    device = next((_local(tensor).device for tensor in tensors.values()), torch.device("cpu"))
    found = torch.zeros(axis.size, dtype=torch.int64, device=device)
    found[axis.index] = 1 + names.index(bad[0]) if bad else 0
    axis.sum_in_place(found)
    places = {rank: place for rank, place in zip(axis.ranks, found.tolist(), strict=True) if place}
    if places:
        name = names[min(places.values()) - 1]
        raise TrainingDivergedError(
            f"parameter {name} is no finite number any more after step {step}, on rank {_names(places)}: the checkpoint"
            " before this one is kept; try a lower learning_rate or clip_norm",
            step=step,
            ranks=[*places],
            unit=name,
        )


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _names(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _came_from(unit: str, ranks: Sequence[int]) -> str:
    if not unit:
        return ""
    if not ranks:
        return "; all units gave finite numbers, so the loss itself made it"
    return f"; the first number that was none came out of unit {unit} on rank {_names(ranks)}"
