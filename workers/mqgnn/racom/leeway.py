"""How far a replica may still go, and whether its next step may be too large: only then is kept what it changes.

A copy of weights and moments, to undo a step, costs about as much as the optimiser's update. While a replica is many
strides away from its bounds none is made. Should such a step leave them all the same, it is shortened instead of
undone, so that the bounds hold in any case.
"""

from collections.abc import Sequence

from torch import Tensor

from workers.mqgnn.racom import rules
from workers.mqgnn.racom.weights import ReplicaWeights, distance

# Chosen: strides of one run differ by far less from step to step, but where the learning rate jumps.
_STRIDES = 4.0
_FADING = 0.95  # of the longest stride, in each step; chosen: the learning rate falls slower


class Leeway:
    """The bounds of ``weights``: the ``drift`` from the reference, and less from what was given to a mean on its way.

    ``drifted`` is ‖w − r‖ over δ‖r‖ as of the last look.
    """

    def __init__(self, weights: ReplicaWeights, *, drift: float) -> None:
        self._weights, self._drift = weights, drift
        self._stride: float | None = None
        self.begin()

    def begin(self) -> None:
        """The weights are the reference."""
        self._room, self.drifted = self._left_of(0.0), 0.0

    def give(self) -> None:
        """The weights are given to a mean, and may not go far from there until it has come."""
        self._room = min(self._room, self._left_in_flight_of(0.0))

    def look(self) -> None:
        """A mean has been taken in."""
        self._room, self.drifted = self._measure(None)

    def may_be_left(self) -> bool:
        """Whether the next step may be too large; where none was taken yet it may."""
        return self._stride is None or self._room < _STRIDES * self._stride

    def holds(self, given: Sequence[Tensor] | None) -> bool:
        """Whether a step that was just taken stays within the bounds; ``given`` is what the mean on its way was."""
        room, drifted = self._measure(given)
        if not room >= 0:  # as for what is no number
            return False
        stride = max(0.0, self._room - room)
        self._stride = stride if self._stride is None else max(stride, _FADING * self._stride)
        self._room, self.drifted = room, drifted
        return True

    def shorten(self, given: Sequence[Tensor] | None) -> None:
        """Draw the weights back to the bounds that a step has left."""
        self._weights.draw_towards(self._weights.reference, most=self._left_of(0.0))
        if given is not None:  # it lies within the first bound, and so does all on the way there
            self._weights.draw_towards(given, most=self._left_in_flight_of(0.0))
        self.holds(given)

    def _measure(self, given: Sequence[Tensor] | None) -> tuple[float, float]:
        moved, bound = self._weights.distance(), self._left_of(0.0)
        room = self._left_of(moved)
        if given is not None:
            room = min(room, self._left_in_flight_of(distance(self._weights.parameters, given)))
        return room, moved / bound if bound else 0.0

    def _left_of(self, moved: float) -> float:
        return rules.room(moved, reference_norm=self._weights.reference_norm, drift=self._drift)

    def _left_in_flight_of(self, moved: float) -> float:
        drift = rules.flight_drift(self._drift)
        return rules.room(moved, reference_norm=self._weights.reference_norm, drift=drift)
