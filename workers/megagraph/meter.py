"""Means over the steps since the last report. Time outside steps (evaluation, checkpoints) is left out."""


class StepMeter:
    """Counts steps, nodes and seconds between reports."""

    def __init__(self) -> None:
        self._clear()

    def add_step(self, *, loss: float, num_nodes: int, seconds: float) -> None:
        """Count one step: its loss and nodes over all ranks, and how long it took here."""
        self._num_steps += 1
        self._loss += loss
        self._num_nodes += num_nodes
        self._seconds += seconds

    def take(self) -> dict[str, float]:
        """``loss``, ``step_time_s`` and ``items_per_s`` (nodes of all ranks) since the last call; clears them.

        At least one step must have been added.
        """
        values = {
            "loss": self._loss / self._num_steps,
            "step_time_s": self._seconds / self._num_steps,
            "items_per_s": self._num_nodes / self._seconds,
        }
        self._clear()
        return values

    def _clear(self) -> None:
        self._num_steps = 0
        self._loss = 0.0
        self._num_nodes = 0
        self._seconds = 0.0
