"""Which replica takes how many of the seeds of a step: decided for a block of steps at a time, by the newest rates.

Whoever first needs a block's shares decides them for all, so nobody waits and all cut a step's seeds alike: each seed
of an epoch is taken once, whatever the shares were. Who is no member when a block is dealt gets nothing of it. Limits:
decisions stay in the store, some hundred bytes for a block; what was dealt to a replica that dies before it has taken
it is left out of that epoch, at most its part of the steps from where it died to the end of the blocks dealt by then.
"""

import json
import threading
from collections.abc import Callable, Collection

from workers.mqgnn.racom.board import Board
from workers.mqgnn.racom.rules import deal_shares

# Chosen: a few steps are enough to measure a rate, and a straggler is not waited for longer.
BLOCK_STEPS = 8
_REMEMBERED = 64  # blocks; an older one would be asked for again


class Dealing:
    """Called with a step (from 0 over all epochs): the shares of all replicas in its seeds. Any thread may call.

    ``members`` says who goes together at the time.
    """

    def __init__(self, board: Board, *, members: Callable[[], Collection[int]]) -> None:
        self._board, self._members = board, members
        self._known: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: int) -> tuple[int, ...]:
        """Whole parts per replica, for ``seed_order.cut_seeds``."""
        block = step // BLOCK_STEPS
        with self._lock:
            if len(self._known) > _REMEMBERED:
                del self._known[min(self._known)]
            if block not in self._known:
                wanted = self._wanted()
                self._known[block] = tuple(json.loads(self._board.decide(f"shares/{block}", json.dumps(wanted))))
            return self._known[block]

    def _wanted(self) -> list[int]:
        members, lines = sorted(self._members()), self._board.lines()
        dealt = dict(zip(members, deal_shares([lines[rank].seeds_per_s for rank in members]), strict=True))
        return [dealt.get(rank, 0) for rank in range(len(lines))]
