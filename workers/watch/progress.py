"""How far one rank is, said by the thread that trains and read by the one that watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

# What a rank is about. Only a step and an evaluation may be judged by how they go on: making data ready, writing a
# checkpoint and handing in a report take as long as they take.
Phase = Literal["preparation", "step", "evaluation", "checkpoint", "report"]

# Ends a rank's run with an error from another thread than the one that trains.
GiveUp = Callable[[BaseException], None]


class Progress:
    """``count`` grows with all that is reached; ``phase``, ``step`` (1-based) and ``unit`` say where that is.

    ``num_steps`` are the steps that were begun since the start of this process, the present one among them;
    ``steps_per_epoch`` after how many the same seeds or graphs come again. ``announce`` is called at the end of each
    preparation, in which silence means little.
    """

    def __init__(self) -> None:
        self.count = 0
        self.phase: Phase = "preparation"
        self.step = 0
        self.num_steps = 0
        self.steps_per_epoch = 1
        self.unit = ""
        self.announce: Callable[[], None] = lambda: None

    def begin_step(self, step: int) -> None:
        """Optimiser step ``step`` begins."""
        before, self.phase, self.step, self.unit = self.phase, "step", step, ""
        self.num_steps += 1
        self.count += 1
        if before == "preparation":
            self.announce()

    def reach(self, unit: str) -> None:
        """``unit`` of the model is next."""
        self.unit = unit
        self.count += 1

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Something beside the steps, however it ends."""
        before, self.phase, self.unit = self.phase, phase, ""
        self.count += 1
        try:
            yield
        finally:
            self.phase, self.unit = before, ""
            self.count += 1
            if phase == "preparation":
                self.announce()


def follow_units(units: dict[str, nn.Module], *, progress: Progress) -> None:
    """Have every one of ``units``, by name, tell ``progress`` when it begins its forward pass."""
    for name, unit in units.items():
        unit.register_forward_pre_hook(lambda module, inputs, name=name: progress.reach(name))
