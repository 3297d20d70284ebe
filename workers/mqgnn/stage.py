"""One step of the pipeline as a value, and a worker of it: a callable that is timed and that fails under its name.

A stage turns one item into one item. ``make_worker`` builds the callable, once per worker, so that each has scratch
memory of its own; the pipelined and the serial form run the very same workers. Work may also be done elsewhere, and the
worker only wait for it: such a callable is an ``Errand``.
"""

import math
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.errors import StageFailedError
from workers.mqgnn.bounded_queue import QueueAbortedError

FIRST_ITEM_S = 300.0  # far above the slowest honest first mini-batch, far below a job's patience
_LONGER = 10.0  # chosen: a crowded machine makes the same mini-batch several times as long
_REMEMBERED_ITEMS = 64  # for the tail of a stage's times: enough for 95 %, few enough to follow a change


@dataclass(frozen=True)
class Stage:
    """``name`` as in the plan's queues; what workers return must have ``nbytes``.

    ``reserves``: a worker takes a place in the queue before it begins, so that what is under way is bounded, too.
    ``interrupt`` makes workers that wait elsewhere raise ``QueueAbortedError``; it is called once nobody wants items.
    """

    name: str
    make_worker: Callable[[], Callable[[Any], Any]]
    num_workers: int = 1
    reserves: bool = False
    interrupt: Callable[[], None] = lambda: None


class Errand(ABC):
    """Work that others do: ``whom`` it waits for, in words, and ``since`` when (``time.perf_counter``)."""

    whom = ""
    since = 0.0

    @abstractmethod
    def where(self) -> str:
        """Where those stand for whom it waits."""

    @abstractmethod
    def __call__(self, item: Any) -> Any:
        """Have ``item`` worked on."""


class StageMeter:
    """Seconds that the ``num_workers`` workers of one stage have worked, waiting left out."""

    def __init__(self, num_workers: int = 1) -> None:
        self._lock = threading.Lock()
        self._num_workers = num_workers
        self._newest_s: deque[float] = deque(maxlen=_REMEMBERED_ITEMS)
        self.busy_s = self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count the work on one item."""
        with self._lock:
            self.busy_s += seconds
            self.longest_s = max(self.longest_s, seconds)
            self._newest_s.append(seconds)

    def p95_s(self) -> float:
        """Seconds from one item to the next, all workers at work, within which 95 % of the newest were made."""
        with self._lock:
            newest = sorted(self._newest_s)
        return newest[math.ceil(0.95 * len(newest)) - 1] / self._num_workers if newest else 0.0


class StageWorker:
    """Runs one worker of ``stage``. Any failure, also of building it, becomes a ``StageFailedError``.

    That of a stage which runs elsewhere is one already.
    """

    def __init__(self, stage: Stage, *, meter: StageMeter) -> None:
        self.stage = stage
        self._meter = meter
        self._work: Callable[[Any], Any] | None = None
        self.busy_since: float | None = None  # time.perf_counter(), while working

    def __call__(self, item: Any) -> Any:
        """Work on one item."""
        self.busy_since = started = time.perf_counter()
        try:
            if self._work is None:
                self._work = self.stage.make_worker()
            return self._work(item)
        except (QueueAbortedError, StageFailedError):
            raise
        except Exception as error:
            raise stage_failure(self.stage.name, error, item=item) from error
        finally:
            self.busy_since = None
            self._meter.add(time.perf_counter() - started)

    def busy_s(self) -> float:
        """Seconds spent on the present item so far, of an errand since it was last sent; 0 when waiting."""
        since = self.busy_since
        if since is not None and isinstance(self._work, Errand):
            since = max(since, self._work.since)
        return 0.0 if since is None else time.perf_counter() - since

    def whom(self) -> str:
        """For whom it waits, in words; empty where it works by itself."""
        return self._work.whom if isinstance(self._work, Errand) else ""

    def stack(self, thread: threading.Thread) -> str:
        """Where the work stands that ``thread`` does, or has others do."""
        if isinstance(self._work, Errand):
            return self._work.where()
        frame = sys._current_frames().get(thread.ident or 0)
        return "".join(traceback.format_stack(frame)).rstrip() if frame else "its thread has ended"

    def may_take_s(self, limit_s: float) -> float:
        """Seconds after which it is taken to hang: ``limit_s``, or ten times the longest item of its stage.

        A first item may take ``FIRST_ITEM_S``: scratch memory is made, and kernels may be compiled.
        """
        return max(limit_s, _LONGER * self._meter.longest_s if self._meter.longest_s else FIRST_ITEM_S)


def stage_failure(name: str, error: Exception, *, item: Any) -> StageFailedError:
    """The error that users see when a stage raises: its name, what it worked on, and the original traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    return StageFailedError(
        f"stage {name!r} failed on {_describe_item(item)}: {type(error).__name__}: {error}\n{text}",
        stage=name,
        error=type(error).__name__,
        traceback=text,
    )


def stage_hang(worker: StageWorker, thread: threading.Thread, *, limit_s: float) -> StageFailedError:
    """The error that users see when a stage stops answering: its name and where its work stands now."""
    seconds, limit = worker.busy_s(), worker.may_take_s(limit_s)
    waits = f", waiting for {worker.whom()}," if worker.whom() else ""
    text = worker.stack(thread)
    return StageFailedError(
        f"stage {worker.stage.name!r} has worked on one item for {seconds:.1f} s{waits} and the limit is {limit:g} s;"
        f" it stands at\n{text}",
        stage=worker.stage.name,
        error="hang",
        traceback=text,
    )


def _describe_item(item: Any) -> str:
    """A few words that find an item again: its task if it has one."""
    return str(getattr(item, "task", item))[:200]
