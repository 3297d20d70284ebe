"""The notice board of the replicas: one line each in a key-value store, and decisions that are made once.

A replica alone cannot start a collective, so clocks, versions and requests travel here. Each replica writes only its
own line. A thread posts it and reads the others', so nobody who trains waits for the network; what it has read may be
old, and every rule that uses it is safe with that: old clocks make a replica wait longer, an unseen request is joined a
step later. A decision (which seeds a block of steps deals to whom, what a synchronisation is, who belongs to a
generation) belongs to whoever writes it first, and all the others read the same.

The thread also writes while there is nothing new, so a line that stays as it was is that of a replica that is gone.
"""

import json
import secrets
import threading
import time
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch.distributed as dist

# Chosen: far below the time of a step over a network, and some hundredths of a core's time.
_REFRESH_S = 0.01
_LEAVE_S = 5.0
# Chosen: many within the shortest silence after which a replica counts as gone.
_BEAT_S = 0.1
# Chosen: who has not read for so long was suspended, or kept from the interpreter, and holds that against nobody.
_AWAY_S = 0.5


@dataclass(frozen=True)
class Line:
    """What a replica says of itself. ``wants`` is the newest synchronisation that it takes part in, of ``kind``.

    ``life`` tells a replica from one that had its place before; ``generation`` is the newest that it has heard of and
    belongs to (``workers.mqgnn.racom.membership``), 0 for one that asks to be let in. ``beat`` only grows.
    """

    life: str = ""
    beat: int = 0
    generation: int = 0
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


def say_gone(store: dist.Store, *, place: int) -> None:
    """Wipe the line of a replica whose process has ended, so that the others need not wait to be sure of it."""
    store.set(_key(place), Line().encode())


class Board:
    """The lines of all replicas as this one, at ``place`` of ``size``, has seen them last; its own is always exact.

    ``store`` is cloned: each thread that asks it has a connection of its own. Every replica writes its first line
    before it reads others', so construction waits until all are there.
    """

    def __init__(self, store: dist.Store, *, place: int, size: int) -> None:
        self.place, self.size = place, size
        self._keys = [_key(other) for other in range(size)]
        self._watched, self._asked = store.clone(), store.clone()
        self._asking = threading.Lock()
        self._changed = threading.Condition()
        self._own, self._dirty, self._closing = Line(life=secrets.token_hex(8)), True, False
        self._failure: Exception | None = None
        self._lines = [Line()] * size
        self._read_at = self._written_at = time.monotonic()
        self._heard_at = [self._read_at] * size
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
            self._lines[self.place] = self._own
            self._dirty = True
            self._changed.notify_all()

    def lines(self) -> tuple[Line, ...]:
        """All lines by place. Raises what the thread that reads them has met."""
        with self._changed:
            self._check()
            return tuple(self._lines)

    def silent_s(self, place: int) -> float:
        """Seconds for which nothing was heard of a replica, as far as this one has listened."""
        with self._changed:
            return 0.0 if place == self.place else self._read_at - self._heard_at[place]

    def wait(self, timeout_s: float = _REFRESH_S) -> None:
        """Until the lines have been read again, or for ``timeout_s``. Raises as ``lines`` does."""
        with self._changed:
            self._changed.wait(timeout_s)
            self._check()

    def decide(self, key: str, value: str) -> str:
        """What is decided of ``key``: ``value`` if nobody has decided it yet."""
        with self._asking:
            return self._asked.compare_set(key, "", value).decode()

    def decided(self, key: str) -> str | None:
        """What is decided of ``key``, if anything is."""
        with self._asking:
            return self._asked.get(key).decode() if self._asked.check([key]) else None

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
            if time.monotonic() - self._written_at > _BEAT_S:
                self._own, self._dirty = replace(self._own, beat=self._own.beat + 1), True
            own, self._dirty = (self._own if self._dirty else None), False
        if own is not None:
            self._watched.set(self._keys[self.place], own.encode())
            self._written_at = time.monotonic()
        lines = [Line.decode(text) for text in self._watched.multi_get(self._keys)]
        with self._changed:
            self._hear(lines, now=time.monotonic())
            self._lines = lines
            self._lines[self.place] = self._own
            self._changed.notify_all()

    def _hear(self, lines: list[Line], *, now: float) -> None:
        away_s, self._read_at = now - self._read_at, now
        for place, (line, before) in enumerate(zip(lines, self._lines, strict=True)):
            if line != before:
                self._heard_at[place] = now
            elif away_s > _AWAY_S:
                self._heard_at[place] += away_s


def _key(place: int) -> str:
    return f"line/{place}"
