"""What a replica saw between two reports: how far it drifted, how far it led, and how long it waited for others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class RacomMeters:
    """Figures since the last ``take``."""

    def __init__(self) -> None:
        self._depth = 0
        self._clear()

    def _clear(self) -> None:
        self._waited_s, self._drift, self._lead, self._num_shortened = 0.0, 0.0, 0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time inside as waiting; once where it is nested."""
        started, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._waited_s += time.perf_counter() - started

    def saw_drift(self, drift_over_bound: float) -> None:
        """‖w − r‖ over δ‖r‖ after a step."""
        self._drift = max(self._drift, drift_over_bound)

    def saw_lead(self, num_steps: int) -> None:
        """Steps ahead of the slowest replica after a step."""
        self._lead = max(self._lead, num_steps)

    def shortened(self) -> None:
        """A step would have left the bounds, unforeseen."""
        self._num_shortened += 1

    def take(self) -> dict[str, float]:
        """The figures, which begin anew."""
        values = {
            "sync_waited_s": self._waited_s,
            "drift_over_bound": self._drift,
            "clock_lead_max": float(self._lead),
            "steps_shortened": float(self._num_shortened),
        }
        self._clear()
        return values
