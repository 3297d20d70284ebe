"""The notice board of the replicas: one line each in a key-value store, and decisions that are made once.

A replica alone cannot start a collective, so clocks, versions and requests travel here. Each replica writes only its
own line. A thread posts it and reads the others', so nobody who trains waits for the network; what it has read may be
old, and every rule that uses it is safe with that: old clocks make a replica wait longer, an unseen request is joined a
step later. A decision (which seeds a block of steps deals to whom, what a synchronisation is) belongs to whoever
writes it first, and all the others read the same.
"""

import json
import threading
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch.distributed as dist

# Chosen: far below the time of a step over a network, and some hundredths of a core's time.
_REFRESH_S = 0.01
_LEAVE_S = 5.0


@dataclass(frozen=True)
class Line:
    """What a replica says of itself. ``wants`` is the newest synchronisation that it takes part in, of ``kind``."""

    clock: int = 0
    wants: int = 0
    kind: str = ""
    seeds_per_s: float = 0.0
    loss: float | None = None  # the mean over its seeds of its latest step
    num_pushed: int = 0

    def encode(self) -> str:
        """The line as text."""
        return json.dumps(astuple(self))

    @classmethod
    def decode(cls, text: bytes) -> "Line":
        """The line of a text made by ``encode``."""
        return cls(*json.loads(text))


class Board:
    """The lines of all replicas as this one, at ``place`` of ``size``, has seen them last; its own is always exact.

    ``store`` is cloned: each thread that asks it has a connection of its own. Every replica writes its first line
    before it reads others', so construction waits until all are there.
    """

    def __init__(self, store: dist.Store, *, place: int, size: int) -> None:
        self._place, self._keys = place, [f"line/{other}" for other in range(size)]
        self._watched, self._asked = store.clone(), store.clone()
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._own, self._dirty, self._closing = Line(), True, False
        self._failure: Exception | None = None
        self._lines = [Line()] * size
        self._refresh()
        self._thread = threading.Thread(target=self._watch, name="racom-board", daemon=True)
        self._thread.start()

    @property
    def own(self) -> Line:
        """This replica's line."""
        return self._own

    def post(self, **changes: Any) -> None:
        """Change fields of this replica's line; it is on its way when this returns."""
        with self._changed:
            self._own = replace(self._own, **changes)
            self._lines[self._place] = self._own
            self._dirty = True
            self._changed.notify_all()

    def lines(self) -> tuple[Line, ...]:
        """All lines by place. Raises what the thread that reads them has met."""
        with self._changed:
            self._check()
            return tuple(self._lines)

    def wait(self, timeout_s: float = _REFRESH_S) -> None:
        """Until the lines have been read again, or for ``timeout_s``. Raises as ``lines`` does."""
        with self._changed:
            self._changed.wait(timeout_s)
            self._check()

    def decide(self, key: str, value: str) -> str:
        """What is decided of ``key``: ``value`` if nobody has decided it yet."""
        with self._asking:
            return self._asked.compare_set(key, "", value).decode()

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_LEAVE_S)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _watch(self) -> None:
        try:
            while not self._closing:
                self._refresh()
                with self._changed:
                    self._changed.wait_for(lambda: self._dirty or self._closing, _REFRESH_S)
        except Exception as error:  # the store has gone, with the replica that held it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _refresh(self) -> None:
        with self._changed:
            own, self._dirty = (self._own if self._dirty else None), False
        if own is not None:
            self._watched.set(self._keys[self._place], own.encode())
        lines = [Line.decode(text) for text in self._watched.multi_get(self._keys)]
        with self._changed:
            self._lines = lines
            self._lines[self._place] = self._own
            self._changed.notify_all()
