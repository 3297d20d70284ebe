"""Whether the database takes writes, asked at most once a second however many ask: the readiness check needs no key."""

import math
import time
from collections.abc import Callable

import anyio
from anyio import to_thread

from api.schemas.system import CheckView

_PATIENCE_S = 3.0
_FRESH_S = 1.0


class DatabaseCheck:
    """Remembers the last answer of ``write``, and lets one asker at a time ask again."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write = write
        self._turn = anyio.Lock()
        self._view = CheckView(ok=False, detail="was not asked yet")
        self._asked_at = -math.inf

    async def answer(self) -> CheckView:
        """What the database did within the last second, or within ``_PATIENCE_S`` from now."""
        async with self._turn:
            if time.monotonic() - self._asked_at >= _FRESH_S:
                self._view = await self._ask()
                self._asked_at = time.monotonic()
            return self._view

    async def _ask(self) -> CheckView:
        with anyio.move_on_after(_PATIENCE_S):
            try:
                await to_thread.run_sync(self._write, abandon_on_cancel=True)
            except Exception as error:  # whatever it is, this is not ready
                return CheckView(ok=False, detail=f"cannot write: {type(error).__name__}")
            return CheckView(ok=True, detail="takes writes")
        return CheckView(ok=False, detail=f"no answer within {_PATIENCE_S:g} s")
