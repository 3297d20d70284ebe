"""Which replica takes how many of the seeds of a step: decided for a block of steps at a time, by the newest rates.

Whoever first needs a block's shares decides them for all, so nobody waits and all cut a step's seeds alike: each seed
of an epoch is taken once, whatever the shares were. Limit: decisions stay in the store, some hundred bytes for a block.
"""

import json
import threading

from workers.mqgnn.racom.board import Board
from workers.mqgnn.racom.rules import deal_shares

# Chosen: a few steps are enough to measure a rate, and a straggler is not waited for longer.
BLOCK_STEPS = 8
_REMEMBERED = 64  # blocks; an older one would be asked for again


class Dealing:
    """Called with a step (from 0 over all epochs): the shares of all replicas in its seeds. Any thread may call."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[int, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: int) -> tuple[int, ...]:
        """Whole parts per replica, for ``seed_order.cut_seeds``."""
        block = step // BLOCK_STEPS
        with self._lock:
            if len(self._known) > _REMEMBERED:
                del self._known[min(self._known)]
            if block not in self._known:
                wanted = deal_shares([line.seeds_per_s for line in self._board.lines()])
                self._known[block] = tuple(json.loads(self._board.decide(f"shares/{block}", json.dumps(wanted))))
            return self._known[block]
