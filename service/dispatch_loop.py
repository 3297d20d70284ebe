"""The thread that steps the dispatcher, and its heartbeat for the readiness check."""

import logging
import threading
import time

from service.dispatcher import Dispatcher

_log = logging.getLogger(__name__)


class DispatchLoop:
    """Steps a dispatcher every ``interval_s``, or at once after ``wake``. An error is logged and the loop goes on."""

    def __init__(self, dispatcher: Dispatcher, *, interval_s: float) -> None:
        self.dispatcher = dispatcher
        self._interval_s = interval_s
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._last_round = time.monotonic()
        self.fault: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is news; do not wait for the interval."""
        self._news.set()

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """End after the step in progress, and let another dispatcher continue."""
        self._stopping = True
        self._news.set()
        self._thread.join(timeout_s)

    @property
    def silence_s(self) -> float:
        """Seconds since a round last ended."""
        return time.monotonic() - self._last_round

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.dispatcher.step()
                self.fault = None
            except Exception as error:
                self.fault = f"{type(error).__name__}: {error}"
                _log.exception("a round of the dispatcher failed; the next one tries again")
            self._last_round = time.monotonic()
            self._news.wait(self._interval_s)
            self._news.clear()
        try:
            self.dispatcher.release()
        except Exception:
            _log.exception("the dispatcher could not let go of its lease; it runs out by itself")
