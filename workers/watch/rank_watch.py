"""The watch of one rank: trains in a thread, beats and listens in another, and ends with the first that has an end.

A rank that waits in a collective cannot be woken from outside. So whoever called waits for either the training or
the watch: when a rank has stopped answering, every other one raises ``RankUnresponsiveError`` within the limit and
leaves its own training behind where it stands, for the process to end with. Who starts runs restarts them.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from workers.comm.axis import COLLECTIVE_TIMEOUT_S, open_axis
from workers.errors import RankUnresponsiveError
from workers.watch.beats import Beat, BeatSocket, open_beats
from workers.watch.hung_ranks import HungRanks
from workers.watch.progress import GiveUp, Progress

T = TypeVar("T")
_LONGEST_INTERVAL_S = 1.0
_BEATS_PER_LIMIT = 20
# Where a thread is that waits for other ranks: in torch's collectives or in ours, or for replicas that step by
# themselves. Torch's way into an operator is not a place of its own, nor is that into a lock.
_WAITING = ("/torch/distributed/", "/workers/comm/", "/workers/mqgnn/racom/")
_PASSED_THROUGH = ("/torch/_ops.py", "/threading.py")


@dataclass(frozen=True)
class WatchTerms:
    """Who is watched: ``rank`` of ``world_size``, reached at ``address``; ``limit_s`` is how long it may be silent."""

    rank: int
    world_size: int
    address: str
    device: torch.device
    limit_s: float


def run_apart(work: Callable[[GiveUp], T], *, watch: Callable[[threading.Thread, GiveUp], Any] | None = None) -> T:
    """What ``work(give_up)`` returns or raises in a thread of its own, or what ``give_up`` is called with before.

    ``watch(thread, give_up)`` is a context manager that is open as long as this waits.
    """
    ends: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def give_up(error: BaseException) -> None:
        ends.put(_raises(error))

    trainer = threading.Thread(target=lambda: ends.put(_outcome_of(partial(work, give_up))), name="train", daemon=True)
    trainer.start()
    with nullcontext() if watch is None else watch(trainer, give_up):
        return ends.get()()


def run_watched(work: Callable[[GiveUp], T], *, terms: WatchTerms, progress: Progress) -> T:
    """``run_apart`` beside the other ranks of the run. Collective over all of them.

    Raises ``RankUnresponsiveError`` when another rank, or this one, stops answering before ``work`` has ended.
    """
    axis = open_axis((tuple(range(terms.world_size)),), rank=terms.rank)
    try:
        beats = open_beats(axis, address=terms.address, device=terms.device)
    finally:
        axis.close()
    return run_apart(work, watch=partial(_Watch, beats, terms=terms, progress=progress))


def _outcome_of(work: Callable[[], T]) -> Callable[[], T]:
    try:
        value = work()
    except BaseException as error:  # whatever it is, the caller's thread raises it
        return _raises(error)
    return lambda: value


def _raises(error: BaseException) -> Callable[[], T]:
    def end() -> T:
        raise error

    return end


class _Watch:
    """The thread that beats, listens and judges."""

    def __init__(
        self,
        beats: BeatSocket,
        trainer: threading.Thread,
        give_up: GiveUp,
        *,
        terms: WatchTerms,
        progress: Progress,
    ) -> None:
        self._beats, self._terms, self._progress, self._trainer = beats, terms, progress, trainer
        self._give_up = give_up
        self._interval_s = min(_LONGEST_INTERVAL_S, terms.limit_s / _BEATS_PER_LIMIT)
        self._judge = HungRanks(
            terms.rank,
            limit_s=terms.limit_s,
            patient_s=max(terms.limit_s, COLLECTIVE_TIMEOUT_S),
            interval_s=self._interval_s,
        )
        self._lock = threading.Lock()
        self._said: Beat | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> None:
        """Begin to watch."""
        self._progress.announce = self._announce
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        """Say farewell and free the port."""
        self._is_over.set()
        self._beats.wake()
        self._thread.join()
        self._beats.close()

    def _watch(self) -> None:
        words = None
        while not self._is_over.is_set():
            self._judge.hear(self._say(), now=time.monotonic())
            for heard in self._beats.receive(seconds=self._interval_s):
                self._judge.hear(heard, now=time.monotonic())
            words = self._judge.look(now=time.monotonic())
            if words is not None:
                self._give_up(RankUnresponsiveError(words))
                break
        self._say(left=True, verdict=words or "")

    def _announce(self) -> None:
        """The thread that trains has prepared something. Who was last heard preparing could be silent for long."""
        with self._lock:
            is_heard_preparing = self._said is not None and self._said.phase == "preparation"
        if is_heard_preparing:
            self._say()

    def _say(self, *, left: bool = False, verdict: str = "") -> Beat:
        with self._lock:
            self._said = self._beat(left=left, verdict=verdict)
            self._beats.send(self._said)
            return self._said

    def _beat(self, *, left: bool, verdict: str) -> Beat:
        progress, terms = self._progress, self._terms
        where, in_collective = place_of(self._trainer)
        return Beat(
            rank=terms.rank,
            pid=os.getpid(),
            node=terms.address,
            phase=progress.phase,
            step=progress.step,
            num_steps=progress.num_steps,
            steps_per_epoch=progress.steps_per_epoch,
            unit=progress.unit,
            count=progress.count,
            cpu_s=time.process_time(),
            waits=in_collective or progress.phase in ("checkpoint", "report"),
            where=where,
            left=left,
            verdict=verdict,
        )


def place_of(thread: threading.Thread) -> tuple[str, bool]:
    """(``file:line in function`` that ``thread`` is at, whether it waits for other ranks there)."""
    frame: FrameType | None = None if thread.ident is None else sys._current_frames().get(thread.ident)
    while frame is not None and frame.f_code.co_filename.endswith(_PASSED_THROUGH):
        frame = frame.f_back
    if frame is None:
        return "its end", False
    path = Path(frame.f_code.co_filename)
    where = f"{'/'.join(path.parts[-3:])}:{frame.f_lineno} in {frame.f_code.co_name}"
    return where, any(place in path.as_posix() for place in _WAITING)
