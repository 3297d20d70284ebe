"""A long-lived pool of gloo ranks: spawn once, then run many functions on any number of them.

Starting a rank costs seconds (a fresh interpreter that imports torch), running a function on ranks that stand costs
milliseconds; so a folder of tests (its ``conftest.py``) or a module keeps one pool:

    @pytest.fixture(scope="module")
    def pool():
        with GlooPool(4) as pool:
            yield pool

    def test_sum(pool):
        assert pool.run(sum_of_ranks, world_size=3) == [3, 3, 3]     # sum_of_ranks(rank, world_size) in the same module

Every run gets a fresh default process group of exactly ``world_size`` ranks (none at all for one rank, as the runtimes
promise to work without). Arguments and results travel as pickles. A rank that dies, hangs or raises ends the run with
one ``RanksFailedError`` that names all failing ranks; the next run starts the missing ranks again. Children die with
their parent, however it ends.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch
import torch.distributed as dist

_PR_SET_PDEATHSIG = 1
_GRACE_S = 3.0  # once a rank has failed, its peers see the closed connections within milliseconds
_START_S = 120.0  # importing torch takes 2 s on a quiet machine, ten times that on a crowded one


class RanksFailedError(Exception):
    """Some ranks of a run failed. ``errors`` maps each to its exception (text where that does not pickle)."""

    def __init__(self, message: str, errors: dict[int, BaseException]) -> None:
        super().__init__(message)
        self.errors = errors


@dataclass(frozen=True)
class _Failure:
    error: BaseException
    text: str


@dataclass(frozen=True)
class _Rank:
    process: BaseProcess
    pipe: Connection


class GlooPool:
    """``size`` processes that wait for work. Use as a context manager; see the module for an example."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ranks: dict[int, _Rank] = {}
        self._runs = 0

    def __enter__(self) -> Self:
        self._start_missing(self.size)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(
        self, function: Callable[..., Any], *args: Any, world_size: int | None = None, timeout_s: float = 120.0
    ) -> list[Any]:
        """Call ``function(rank, world_size, *args)`` on ranks 0..world_size-1; their results in rank order.

        ``function`` must be importable (a module's own function, no lambda). Raises ``RanksFailedError``.
        """
        world_size = self.size if world_size is None else world_size
        if not 1 <= world_size <= self.size:
            raise ValueError(f"world_size must be 1..{self.size} (the size of this pool); found {world_size}")
        self._start_missing(world_size)
        self._runs += 1
        request = pickle.dumps((function, args, world_size, f"run-{self._runs}", timeout_s))
        for rank in range(world_size):
            self._ranks[rank].pipe.send_bytes(request)
        answers = self._collect(set(range(world_size)), time.monotonic() + timeout_s, timeout_s)
        failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, _Failure)}
        if failures:
            raise RanksFailedError(
                _grouped(failures, world_size), {rank: failure.error for rank, failure in sorted(failures.items())}
            )
        return [answers[rank] for rank in range(world_size)]

    def run_apart(
        self, function: Callable[..., Any], *args: Any, world_size: int, timeout_s: float = 120.0
    ) -> list[list[Any]]:
        """Call ``function(store_port, rank, world_size, *args)`` on ranks without a process group.

        A rank that dies is called again at once, in a new process. What each rank answered, in order: results, and an
        exception for each death; the last one is always a result.
        """
        self._start_missing(world_size)
        deadline = time.monotonic() + timeout_s
        answers: list[list[Any]] = [[] for _ in range(world_size)]
        waiting = set(range(world_size))
        for rank in waiting:
            self._send_apart(rank, function, args, world_size, timeout_s)
        while waiting:
            ready = wait([self._ranks[rank].pipe for rank in waiting], max(deadline - time.monotonic(), 0.0))
            if not ready:
                for rank in waiting:
                    self._kill(rank)
                raise RanksFailedError(f"no answer of ranks {sorted(waiting)} within {timeout_s:.0f} s", {})
            for rank in [rank for rank in waiting if self._ranks[rank].pipe in ready]:
                answer = self._receive(rank)
                answers[rank].append(answer.error if isinstance(answer, _Failure) else answer)
                if rank in self._ranks:
                    waiting.discard(rank)
                    continue
                self._start_missing(world_size)
                self._send_apart(rank, function, args, world_size, timeout_s)
        return answers

    def _send_apart(
        self, rank: int, function: Callable[..., Any], args: tuple[Any, ...], world_size: int, timeout_s: float
    ) -> None:
        called = partial(_apart, function, self._store.port, world_size, args)
        self._ranks[rank].pipe.send_bytes(pickle.dumps((called, (), 1, "", timeout_s)))

    def close(self) -> None:
        """End all ranks: first by closing their pipes, then by force."""
        for rank in self._ranks.values():
            rank.pipe.close()
        for rank in self._ranks.values():
            rank.process.join(_GRACE_S)
            if rank.process.is_alive():
                rank.process.kill()
                rank.process.join()
        self._ranks.clear()

    def _start_missing(self, world_size: int) -> None:
        context = multiprocessing.get_context("spawn")  # fork would copy torch's threads in an unknown state
        started = [rank for rank in range(world_size) if rank not in self._ranks]
        for rank in started:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, theirs, self._store.port, os.getpid()), name=f"gloo-rank-{rank}", daemon=True
            )
            process.start()
            theirs.close()
            self._ranks[rank] = _Rank(process, ours)
        for rank in started:
            if not self._ranks[rank].pipe.poll(_START_S):
                raise RuntimeError(f"rank {rank} of the gloo pool did not start within {_START_S:.0f} s")
            self._ranks[rank].pipe.recv_bytes()

    def _collect(self, waiting: set[int], deadline: float, timeout_s: float) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        while waiting:
            ready = wait([self._ranks[rank].pipe for rank in waiting], max(deadline - time.monotonic(), 0.0))
            for rank in [rank for rank in waiting if self._ranks[rank].pipe in ready]:
                answers[rank] = self._receive(rank)
                waiting.discard(rank)
                if isinstance(answers[rank], _Failure):
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
            if not ready:
                failed = any(isinstance(answer, _Failure) for answer in answers.values())
                reason = "still waiting for a failed rank" if failed else f"no answer within {timeout_s:.0f} s"
                for rank in waiting:
                    self._kill(rank)
                    answers[rank] = _Failure(TimeoutError(reason), reason)
                break
        return answers

    def _receive(self, rank: int) -> Any:
        try:
            return pickle.loads(self._ranks[rank].pipe.recv_bytes())
        except (EOFError, OSError):
            process = self._ranks[rank].process
            process.join(_GRACE_S)
            text = f"the process died with exit code {process.exitcode}"
            self._kill(rank)
            return _Failure(RuntimeError(text), text)

    def _kill(self, rank: int) -> None:
        dead = self._ranks.pop(rank)
        dead.process.kill()
        dead.process.join()
        dead.pipe.close()


def _apart(
    function: Callable[..., Any], port: int, world_size: int, args: tuple[Any, ...], rank: int, alone: int
) -> Any:
    assert alone == 1
    return function(port, rank, world_size, *args)


def _grouped(failures: dict[int, _Failure], world_size: int) -> str:
    """One message: ranks that failed alike share a paragraph."""
    by_text: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        by_text.setdefault(failure.text, []).append(rank)
    parts = [
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {text}" for text, ranks in by_text.items()
    ]
    return f"{len(failures)} of {world_size} ranks failed\n" + "\n".join(parts)


def _serve(pool_rank: int, pipe: Connection, store_port: int, parent_pid: int) -> None:
    """A rank's whole life: announce, then run what arrives until the pipe closes."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above took hold
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the pipe
    store = dist.TCPStore("127.0.0.1", store_port, is_master=False)
    pipe.send_bytes(b"ready")
    while True:
        try:
            request = pipe.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # there is nothing to save, and the interpreter's own farewell can take seconds
        pipe.send_bytes(_answer(pool_rank, store, request))


def _answer(rank: int, store: dist.Store, request: bytes) -> bytes:
    try:
        torch.set_num_threads(1)  # whatever the run before has set
        function, args, world_size, prefix, timeout_s = pickle.loads(request)
        if world_size > 1:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(prefix, store),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout_s),
            )
            dist.barrier()  # a rank that is done at once must not close its connections while others still connect
        return pickle.dumps(function(rank, world_size, *args))
    except Exception as error:  # whatever it is, the parent reports it
        text = "".join(traceback.format_exception(error)).rstrip()
        try:
            return pickle.dumps(_Failure(error, text))
        except Exception:  # an exception that does not pickle still has a text
            return pickle.dumps(_Failure(RuntimeError(repr(error)), text))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
            _forget_meshes()


def _forget_meshes() -> None:
    """Let torch's rules for sharded tensors go: they hold meshes, found by their ranks, whose groups are gone now."""
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    clear_redistribute_planner_cache()
