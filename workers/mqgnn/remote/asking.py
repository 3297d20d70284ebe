"""The stage of a replica whose mini-batches are made elsewhere: asks actors for them ahead, and takes what they answer.

    tasks ─▶ ask ⋯▶ an actor samples, prepares ⋯▶ unpack ─▶ (transfer) ─▶ compute …

Each thread of the stage has one request out. It has reserved a place in the queue behind before (``bounded_queue``),
so that the plan's bounds hold of all that is under way. A reference lives until its answer is taken, the memory of an
answer until the mini-batch is.

An actor that is lost is not asked for a moment; what it had is asked of the others. Requests say all that there is to
know, so it does not matter who answers. Whoever leaves while an actor has been silent for too long has it restarted, so
that the next run finds one that answers.
"""

import logging
import math
import threading
import time
from collections.abc import Callable

from workers.errors import StageFailedError
from workers.models.blocks import InPlace
from workers.models.sampled import Reading
from workers.mqgnn.bounded_queue import QueueAbortedError
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.preparation import REMOTE
from workers.mqgnn.remote.batch_maker import BatchRequest
from workers.mqgnn.remote.packing import PackedBatch, unpack
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.stage import Errand, Stage
from workers.training.remote_calls import ActorLostError, RemoteCalls

_log = logging.getLogger(__name__)

# Chosen: often enough to find one that is back, seldom enough that asking costs nothing.
ASK_AGAIN_S = 0.5
# Chosen: a process with torch starts in some six seconds, on a crowded machine in ten times that.
RETURN_S = 60.0
_LOOK_EVERY_S = 0.2  # whether somebody still wants an answer


class ActorChoice:
    """Which actor is asked next: one with the fewest requests out, in turns; not one that was lost a moment ago."""

    def __init__(self, num_actors: int, *, first: int) -> None:
        """``first`` is where the turns begin, so that replicas do not all begin with the same."""
        self._num_out = [0] * num_actors
        self._lost_at = [-math.inf] * num_actors
        self._turn = first % num_actors

    def take(self, *, now: float) -> int | None:
        """The one to ask at ``now`` (seconds); None while all are lost."""
        able = [actor for actor, lost_at in enumerate(self._lost_at) if now - lost_at >= ASK_AGAIN_S]
        if not able:
            return None
        size = len(self._num_out)
        chosen = min(able, key=lambda actor: (self._num_out[actor], (actor - self._turn) % size))
        self._turn = (chosen + 1) % size
        self._num_out[chosen] += 1
        return chosen

    def give_back(self, actor: int) -> None:
        """Its request is no longer out."""
        self._num_out[actor] -= 1

    def lose(self, actor: int, *, now: float) -> bool:
        """It was found lost at ``now``. Returns whether that is news: it had answered since."""
        is_news = self._lost_at[actor] == -math.inf
        self._lost_at[actor] = now
        return is_news

    def find(self, actor: int) -> None:
        """It has answered."""
        self._lost_at[actor] = -math.inf


class Asker:
    """What a replica asks of the actors that sample for it; shared by the threads of its stage."""

    def __init__(
        self,
        calls: RemoteCalls,
        *,
        order: SeedOrder,
        rank: int,
        reading: Reading,
        in_place: InPlace | None,
        hang_limit_s: float,
    ) -> None:
        """``in_place`` are the features that a ``reading`` other than "gathered" reads."""
        self._calls, self._order, self._rank = calls, order, rank
        self._reading, self._in_place, self._hang_limit_s = reading, in_place, hang_limit_s
        self._choice, self._lock = ActorChoice(calls.num_actors, first=rank), threading.Lock()
        self._is_over = threading.Event()
        self._restarted: set[int] = set()

    def stage(self, *, num_ahead: int) -> Stage:
        """The stage, with ``num_ahead`` requests out at most."""
        return Stage(REMOTE, lambda: _Request(self), num_workers=num_ahead, reserves=True, interrupt=self._is_over.set)

    def name(self, actor: int | None) -> str:
        """``actor`` in words, None for all of them."""
        return "any of the sampling actors to come back" if actor is None else self._calls.name(actor)

    def where(self, actor: int | None) -> str:
        """Where ``actor`` stands, None for all of them."""
        return "no sampling actor, as none has come back" if actor is None else self._calls.where(actor)

    def batch(self, task: BatchTask, *, tell: Callable[[int | None], None]) -> MiniBatch:
        """The mini-batch of ``task``; ``tell`` hears whom it is asked of, each time that is; None while all are lost.

        Raises ``StageFailedError``, ``QueueAbortedError`` and, when nobody has answered for ``RETURN_S`` seconds,
        ``ActorLostError``.
        """
        shares = self._order.shares_in(epoch=task.epoch, batch=task.batch)
        request = BatchRequest(task=task, rank=self._rank, shares=shares, reading=self._reading)
        nobody_since: float | None = None
        while True:
            now = time.perf_counter()
            with self._lock:
                actor = self._choice.take(now=now)
            if actor is None:
                tell(None)
                nobody_since = now if nobody_since is None else nobody_since
                self._wait_for_somebody(now - nobody_since)
                continue
            tell(actor)
            try:
                packed = self._ask(actor, request, since=now)
            except ActorLostError as error:
                self._lose(actor, error)
                continue
            finally:
                with self._lock:
                    self._choice.give_back(actor)
            with self._lock:
                self._choice.find(actor)
            return unpack(packed, in_place=self._in_place)

    def _ask(self, actor: int, request: BatchRequest, *, since: float) -> PackedBatch:
        asked = self._calls.ask(actor, request)
        while not self._calls.has_come(asked, within_s=_LOOK_EVERY_S):
            if self._is_over.is_set():
                if time.perf_counter() - since > self._hang_limit_s:
                    self._restart(actor)
                raise QueueAbortedError(REMOTE)
        try:
            answer: PackedBatch = self._calls.answer(asked)
        except StageFailedError as error:
            raise StageFailedError(f"{self._calls.name(actor)}: {error.message}", **error.details) from None
        return answer

    def _restart(self, actor: int) -> None:
        """Once, however many threads wait for it."""
        with self._lock:
            is_first = actor not in self._restarted
            self._restarted.add(actor)
        if is_first:
            self._calls.restart(actor)

    def _lose(self, actor: int, error: ActorLostError) -> None:
        with self._lock:
            is_news = self._choice.lose(actor, now=time.perf_counter())
        if is_news:
            _log.warning("%s is lost, others are asked in its place: %s", self._calls.name(actor), error)

    def _wait_for_somebody(self, waited_s: float) -> None:
        if waited_s > RETURN_S:
            raise ActorLostError(
                f"none of {self._calls.num_actors} sampling actors has come back for {RETURN_S:g} s; look on the"
                " dashboard whether their nodes are there and have the CPUs that training.sampling asks for"
            )
        if self._is_over.wait(_LOOK_EVERY_S):
            raise QueueAbortedError(REMOTE)


class _Request(Errand):
    """One thread's request."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._actor: int | None = None

    def __call__(self, task: BatchTask) -> MiniBatch:
        """Have the mini-batch of ``task`` made."""
        return self._asker.batch(task, tell=self._tell)

    def where(self) -> str:
        """Where the actor stands."""
        return self._asker.where(self._actor)

    def _tell(self, actor: int | None) -> None:
        self._actor, self.whom, self.since = actor, self._asker.name(actor), time.perf_counter()
