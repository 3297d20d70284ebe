"""Actors in threads of this process, behind the same calls as Ray's: answers cross by pickle, arrays as if shared."""

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from workers.mqgnn.remote.batch_maker import BatchRequest
from workers.mqgnn.remote.packing import PackedBatch
from workers.training.remote_calls import ActorLostError

Make = Callable[[BatchRequest], PackedBatch]


def sent(answer: Any) -> Any:
    """As it arrives: the arrays lie in memory that may be read only."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(answer, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(body, buffers=[bytes(buffer) for buffer in buffers])


class PlayedActors:
    """``RemoteCalls`` to a thread for each of ``makes``; ``spoil(actor, number)`` may raise in its ``number``-th one.

    ``asked`` has every request by actor, ``most_out`` the most that were out at once.
    """

    def __init__(self, makes: list[Make], *, spoil: Callable[[int, int], None] = lambda actor, number: None) -> None:
        self.num_actors, self._makes, self._spoil = len(makes), makes, spoil
        self._threads = [ThreadPoolExecutor(1) for _ in makes]
        self._lock = threading.Lock()
        self.asked: list[list[BatchRequest]] = [[] for _ in makes]
        self.restarted: list[int] = []
        self.num_out = self.most_out = 0

    def name(self, actor: int) -> str:
        return f"sampling actor {actor} (pid 1 on here)"

    def ask(self, actor: int, request: BatchRequest) -> "Future[bytes]":
        with self._lock:
            self.asked[actor].append(request)
            number = len(self.asked[actor])
            self.num_out += 1
            self.most_out = max(self.most_out, self.num_out)
        return self._threads[actor].submit(self._answer, actor, number, request)

    def has_come(self, asked: "Future[bytes]", *, within_s: float) -> bool:
        return bool(wait([asked], timeout=within_s).done)

    def answer(self, asked: "Future[bytes]") -> Any:
        with self._lock:
            self.num_out -= 1
        return asked.result()

    def where(self, actor: int) -> str:
        return f"the stack of {actor}"

    def restart(self, actor: int) -> None:
        self.restarted.append(actor)

    def _answer(self, actor: int, number: int, request: BatchRequest) -> Any:
        self._spoil(actor, number)
        return sent(self._makes[actor](request))

    def close(self) -> None:
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)


@contextmanager
def played(makes: list[Make], **options: Any) -> Iterator[PlayedActors]:
    """Such actors, ended with the block."""
    actors = PlayedActors(makes, **options)
    try:
        yield actors
    finally:
        actors.close()


def lose(*which: tuple[int, int]) -> Callable[[int, int], None]:
    """Plays the loss of these (actor, number of the answer)."""

    def spoil(actor: int, number: int) -> None:
        if (actor, number) in which:
            raise ActorLostError("it was killed")

    return spoil
