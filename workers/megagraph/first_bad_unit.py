"""Which unit made the first number that is none: the forward pass of a step run again, with a look at every output.

Only a step whose loss is NaN or infinite pays for it. Dropout is a function of counters, so the second run makes the
same numbers as the first.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from workers.megagraph.executor import Round
from workers.megagraph.parallelize import ParallelModel

_NONE = float("inf")


def find_bad_unit(parallel: ParallelModel, *, work: Round) -> tuple[str, tuple[int, ...]]:
    """(name of the first unit with an output that is NaN or infinite, the ranks that it came out on). Collective.

    First is by micro-batch, then by the order of the units. Where all outputs are finite it was the loss itself:
    ("loss", ()).
    """
    units = parallel.model.units()
    found = torch.full((parallel.world.size,), 0.0, dtype=torch.float64, device=parallel.executor.device)
    with _watched(units) as positions:
        for _ in parallel.executor.predict(work):
            pass  # the outputs have been looked at where they were made
    found[parallel.world.index] = min(positions, default=_NONE)
    parallel.world.sum_in_place(found)
    firsts = found.tolist()
    first = min(firsts)
    if first == _NONE:
        return "loss", ()
    ranks = tuple(rank for rank, position in zip(parallel.world.ranks, firsts, strict=True) if position == first)
    return list(units)[int(first) % len(units)], ranks


@contextmanager
def _watched(units: dict[str, nn.Module]) -> Iterator[list[int]]:
    """Collects the places of outputs that are not finite: micro-batch times units, plus the unit's own."""
    calls, positions = dict.fromkeys(units, 0), []

    def look(name: str, place: int, output: Tensor) -> None:
        if not torch.isfinite(output).all():
            positions.append(calls[name] * len(units) + place)
        calls[name] += 1

    hooks = [
        unit.register_forward_hook(lambda module, inputs, output, name=name, place=place: look(name, place, output))
        for place, (name, unit) in enumerate(units.items())
    ]
    try:
        yield positions
    finally:
        for hook in hooks:
            hook.remove()
