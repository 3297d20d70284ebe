"""Whether the next step may leave the bounds, judged by those before it: only then is what it changes kept, to undo it.

A copy of weights and moments costs about as much as the optimiser's update. While a replica is many strides away from
its bounds none is made. Should such a step leave them all the same, it is shortened instead of undone, so that the
bounds hold in any case.
"""

# Chosen: strides of one run differ by far less from step to step, but where the learning rate jumps.
_STRIDES = 4.0
_FADING = 0.95  # of the longest stride, in each step; chosen: the learning rate falls slower


class Leeway:
    """``room`` is how much further the replica may go; None where nobody has measured it since it last changed."""

    def __init__(self) -> None:
        self.room: float | None = None
        self._stride: float | None = None

    def may_be_left(self) -> bool:
        """Whether the next step may be too large."""
        return self.room is None or self._stride is None or self.room < _STRIDES * self._stride

    def stepped(self, room: float) -> None:
        """A step has left ``room``."""
        if self.room is not None:
            stride = max(0.0, self.room - room)
            self._stride = stride if self._stride is None else max(stride, _FADING * self._stride)
        self.room = room
