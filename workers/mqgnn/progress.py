"""Turns what stages, queues and steps have measured into the numbers of one report: means since the last report."""

import time
from collections.abc import Callable, Mapping

from workers.mqgnn.exchange import Exchange
from workers.mqgnn.pipeline import Pipeline


class ProgressMeter:
    """Counts steps, seeds and seconds between reports. Time outside steps (evaluation, checkpoints) is left out."""

    def __init__(
        self, pipeline: Pipeline, *, exchange: Exchange, caches: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self._pipeline, self._exchange, self._caches = pipeline, exchange, caches
        self._reported_busy_s = dict.fromkeys(pipeline.meters, 0.0)
        self._reported_starved_s: dict[str, float] = {}
        self._clear()

    def _clear(self) -> None:
        self._num_steps = self._num_seeds = 0
        self._loss = 0.0
        self._part_s = {"wait_s": 0.0, "compute_s": 0.0, "exchange_s": 0.0, "update_s": 0.0}

    def add_step(self, *, loss: float, num_seeds: int, **part_s: float) -> None:
        """Count one step with the seconds of its parts; ``loss`` and ``num_seeds`` are over all replicas."""
        self._num_steps += 1
        self._num_seeds += num_seeds
        self._loss += loss
        for name, seconds in part_s.items():
            self._part_s[name] += seconds

    def take(self) -> dict[str, float]:
        """The numbers since the last call, which at least one step must follow.

        Mean loss, seconds per step (as a whole, by part, busy per stage, and starved per queue), seeds per second of
        all replicas, what the queues hold now, may hold and held at most, and what is under way to them
        from elsewhere; then the figures of exchange and caches.
        """
        num_steps, total_s = self._num_steps, sum(self._part_s.values())
        values = {
            "loss": self._loss / num_steps,
            "step_time_s": total_s / num_steps,
            "items_per_s": self._num_seeds / total_s,
        }
        values |= {name: seconds / num_steps for name, seconds in self._part_s.items()}
        for name, meter in self._pipeline.meters.items():
            values[f"{name}_s"] = (meter.busy_s - self._reported_busy_s[name]) / num_steps
            self._reported_busy_s[name] = meter.busy_s
        for name, queue in self._pipeline.queues.items():
            counters = queue.counters()
            values[f"{name}_queue_depth"] = float(counters.depth)
            values[f"{name}_queue_capacity"] = float(counters.max_items)
            values[f"{name}_queue_high_water_bytes"] = float(counters.high_water_bytes)
            values[f"{name}_queue_starved_s"] = (
                counters.starved_s - self._reported_starved_s.get(name, 0.0)
            ) / num_steps
            self._reported_starved_s[name] = counters.starved_s
            if counters.num_reserved:
                values[f"{name}_queue_in_flight"] = float(counters.in_flight)
        values |= self._exchange.figures() | dict(self._caches())
        self._clear()
        return values


class Stopwatch:
    """``lap()`` gives the seconds since the last lap, or since the start."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return passed
