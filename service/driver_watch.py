"""The second pair of eyes of a driver: a thread that says "alive" and notices that the job must end.

The driver's main thread is mostly inside a call that returns when it pleases: preparing data, waiting for Ray. So the
order to end reaches it as SIGINT, the one signal on which Ray Train takes a run apart in order. Should the main thread
not obey in time, because C code holds it or Ray waits for something, the watch ends the job and the process itself; Ray
then clears away all that the process owned.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from service.spec import JobState
from service.store.insistence import insist
from service.store.job_store import JobStore
from service.store.records import JobRecord, Reason

POLL_S = 0.3
HEARTBEAT_S = 1.0  # three of them fit into the silence after which the dispatcher doubts a driver
OBEY_S = 5.0  # less than the dispatcher waits before it has Ray stop the driver (``cancel_grace_s``)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StopOrder:
    """Why a job must end before its time. ``target`` None: it ended in the store already, only the driver is left."""

    target: JobState | None
    reason: Reason


_STOPPED_FROM_OUTSIDE = StopOrder(
    target=JobState.FAILED,
    reason=Reason(code="driver_stopped", text="the driver was stopped by a signal, not by a cancel of the job"),
)


class StopOrderedError(KeyboardInterrupt):
    """Raised in the main thread when it has to stop.

    Not an ``Exception``, so that nobody takes it for a failure; and a ``KeyboardInterrupt``, because Ray's calls look
    for signals from C++, swallow whatever a handler raises but that, and raise a plain one in its place.
    """


class DriverWatch:
    """Watches one job from ``start`` to ``stop``. ``clock`` counts seconds; ``force_end`` must not return."""

    def __init__(
        self,
        job_id: str,
        *,
        store: JobStore,
        max_runtime_s: float,
        force_end: Callable[[StopOrder], None],
        clock: Callable[[], float] = time.monotonic,
        obey_s: float = OBEY_S,
    ) -> None:
        self._job_id = job_id
        self._store = store
        self._max_runtime_s = max_runtime_s
        self._force_end = force_end
        self._clock = clock
        self._obey_s = obey_s
        self._started_at = clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver-watch", daemon=True)
        self.order: StopOrder | None = None

    def start(self) -> None:
        """Begin to watch. A SIGINT to this process, also one that waits already, then reaches its main thread."""
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in the processes that it starts

    def stop(self) -> None:
        """The job has ended: no more heartbeat, and no order any more."""
        self._ended.set()
        if self._thread.is_alive():  # it was never started when the order to stop came before it
            self._thread.join(timeout=self._obey_s)

    def interrupted(self) -> StopOrder:
        """The order behind an interruption.

        A SIGINT that the watch did not send came from Ray or a person; the dispatcher has Ray send one when a cancel
        was not obeyed, so the job is read once more.
        """
        return self.order or insist(self._find) or _STOPPED_FROM_OUTSIDE

    def _run(self) -> None:
        last_heartbeat = float("-inf")
        while not self._ended.wait(POLL_S):
            now = self._clock()
            try:
                if now - last_heartbeat >= HEARTBEAT_S:
                    self._store.observe(self._job_id)
                    last_heartbeat = now
                order = self._find()
            except Exception:  # a database that is away, or whatever: without a watch nothing could end the job
                _log.exception("the watch of job %s could not look at it; it looks again", self._job_id)
                continue
            if order is not None:
                self._enforce(order)
                return

    def _find(self) -> StopOrder | None:
        job, ran_s = self._store.get_job(self._job_id), self._clock() - self._started_at
        return find_order(job, ran_s=ran_s, max_runtime_s=self._max_runtime_s)

    def _enforce(self, order: StopOrder) -> None:
        self.order = order
        _log.info("job %s has to end: %s", self._job_id, order.reason.text)
        os.kill(os.getpid(), signal.SIGINT)
        if not self._ended.wait(self._obey_s):
            _log.warning("the driver did not end within %g s; ending it now", self._obey_s)
            self._force_end(order)


def find_order(job: JobRecord, *, ran_s: float, max_runtime_s: float) -> StopOrder | None:
    """Whether a job has to end now, and as what."""
    if job.ended:
        return StopOrder(target=None, reason=job.reason or Reason(code="ended", text=f"the job is {job.state} already"))
    if job.cancel_requested_at is not None:
        text = f"cancelled by its user while {job.state}"
        return StopOrder(target=JobState.CANCELLED, reason=Reason(code="cancelled", text=text))
    if ran_s > max_runtime_s:
        text = f"ran for {ran_s:.0f} s while {job.state}; its limit max_runtime_s is {max_runtime_s:g} s"
        return StopOrder(target=JobState.FAILED, reason=Reason(code="max_runtime", text=text))
    return None


@contextmanager
def sigint_raises() -> Iterator[None]:
    """Have the first SIGINT raise ``StopOrderedError`` in the main thread; later ones do not disturb the ending."""
    before = signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _raise_once(signum: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise StopOrderedError
