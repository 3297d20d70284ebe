"""Runs tasks through stages: in threads with bounded queues between them, or one after the other in this thread.

Both forms hand the same items in the same order to the consumer, who is the last stage. Threads share the process:
the sampler is compiled without the interpreter lock, and numpy and torch release it while they copy and multiply.

Stopping is one path for all ends (done, the consumer left, a stage failed or hangs): abort every queue, so that
whoever waits wakes at once, then join the threads.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from planner.errors import PlanInvalidError
from planner.plan import QueueBudget
from workers.errors import StageFailedError
from workers.mqgnn.bounded_queue import BoundedQueue, Entry, QueueAbortedError
from workers.mqgnn.queue_sizing import DECIDE_EVERY_ITEMS, QueueWindow, next_capacity
from workers.mqgnn.stage import Stage, StageMeter, StageWorker, stage_failure, stage_hang
from workers.watch.progress import GiveUp

HANG_LIMIT_S = 10.0  # far above the slowest honest mini-batch: a slow stage has ten times its longest
_LOOKS_PER_LIMIT = 10
_INTERRUPTED_S = 5.0  # far above what an errand takes to see that nobody wants its item


class Pipeline:
    """Stages, the budgets of the queues behind them, and what was measured. Each ``run`` starts and ends afresh."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        budgets: Sequence[QueueBudget] = (),
        pipelined: bool = True,
        hang_limit_s: float = HANG_LIMIT_S,
        give_up: GiveUp | None = None,
    ) -> None:
        """``budgets`` name the stage that fills the queue; a run in a row needs none.

        A worker hangs when one item takes it longer than ``hang_limit_s`` (``StageWorker.may_take_s``). In a row that
        is this thread, so the error goes to ``give_up``; without it nobody looks.

        Raises ``PlanInvalidError`` unless each stage has its own budget and no other is given.
        """
        by_name = {budget.name: budget for budget in budgets}
        needed, found = [stage.name for stage in stages], [budget.name for budget in budgets]
        if pipelined and sorted(found) != sorted(needed):
            raise PlanInvalidError(f"a pipelined run needs one queue budget per stage, {needed}; found {found}")
        self._stages = tuple(stages)
        self._budgets = [by_name[stage.name] for stage in stages] if pipelined else []
        self._pipelined = pipelined
        self._hang_limit_s, self._give_up = hang_limit_s, give_up
        self.meters = {stage.name: StageMeter(stage.num_workers) for stage in stages}
        self.queues: dict[str, BoundedQueue[Any]] = {}

    @contextmanager
    def run(self, tasks: Iterable[Any]) -> Iterator[Iterator[Any]]:
        """Give an iterator over what the last stage makes of ``tasks``, in their order.

        Leaving the block, early or not, stops all threads. Iteration raises ``StageFailedError`` naming the stage
        that failed, or that hangs.
        """
        if not self._pipelined:
            workers = [StageWorker(stage, meter=self.meters[stage.name]) for stage in self._stages]
            with _watched(workers, limit_s=self._hang_limit_s, give_up=self._give_up):
                yield _in_a_row(workers, tasks)
            return
        self.queues = {budget.name: BoundedQueue(budget) for budget in self._budgets}
        threads = _StageThreads(
            self._stages,
            tasks=tasks,
            queues=tuple(self.queues.values()),
            meters=self.meters,
            hang_limit_s=self._hang_limit_s,
        )
        try:
            threads.start()
            yield threads.items()
        finally:
            threads.stop()


def _in_a_row(workers: Sequence[StageWorker], tasks: Iterable[Any]) -> Iterator[Any]:
    for item in tasks:
        for worker in workers:
            item = worker(item)
        yield item


@contextmanager
def _watched(workers: Sequence[StageWorker], *, limit_s: float, give_up: GiveUp | None) -> Iterator[None]:
    """Have a thread look at ``workers``, all of this thread, and give up when one of them hangs."""
    if give_up is None:
        yield
        return
    is_over, worked_by = threading.Event(), threading.current_thread()

    def watch() -> None:
        while not is_over.wait(limit_s / _LOOKS_PER_LIMIT):
            for worker in workers:
                if worker.busy_s() > worker.may_take_s(limit_s):
                    give_up(stage_hang(worker, worked_by, limit_s=limit_s))
                    return

    watcher = threading.Thread(target=watch, name="stages", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


class _StageThreads:
    """The threads of one run."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        tasks: Iterable[Any],
        queues: tuple[BoundedQueue[Any], ...],
        meters: dict[str, StageMeter],
        hang_limit_s: float,
    ) -> None:
        self._queues, self._stages = queues, stages
        self._sizers = [_QueueSizer(queue, meter=meters[queue.name]) for queue in queues]
        self._hang_limit_s = hang_limit_s
        self._failure: StageFailedError | None = None
        self._lock = threading.Lock()
        self._workers: list[tuple[StageWorker, threading.Thread]] = []
        source: _TaskSource | BoundedQueue[Any] = _TaskSource(tasks)
        for stage, queue in zip(stages, queues, strict=True):
            crew = _Crew(queue, stage.num_workers)
            for number in range(stage.num_workers):
                worker = StageWorker(stage, meter=meters[stage.name])
                thread = threading.Thread(
                    target=self._work, args=(worker, source, crew), name=f"{stage.name}-{number}", daemon=True
                )
                self._workers.append((worker, thread))
            source = queue

    def start(self) -> None:
        for _, thread in self._workers:
            thread.start()

    def items(self) -> Iterator[Any]:
        """What comes out of the last queue."""
        while True:
            try:
                entry = self._queues[-1].get(timeout_s=self._until_deadline_s())
            except TimeoutError:
                self._check_hang()
                continue
            except QueueAbortedError:
                if self._failure is None:
                    return  # stopped from outside
                raise self._failure from self._failure.__cause__
            if entry is None:
                return
            if entry.ticket % DECIDE_EVERY_ITEMS == 0:
                for sizer in self._sizers:
                    sizer.decide()
            yield entry.item

    def stop(self) -> None:
        """Wake everybody and wait until all have left, except threads that are known to hang."""
        self._abort()
        for worker, thread in self._workers:
            if thread.ident is None:
                continue  # the system refused to start it
            thread.join(_INTERRUPTED_S if worker.whom() else self._left_s(worker))
            if thread.is_alive() and self._failure is None:
                raise stage_hang(worker, thread, limit_s=self._hang_limit_s)

    def _work(self, worker: StageWorker, source: "_TaskSource | BoundedQueue[Any]", crew: "_Crew") -> None:
        try:
            while (entry := source.get()) is not None:
                if worker.stage.reserves:
                    crew.queue.reserve(ticket=entry.ticket)
                item = worker(entry.item)
                crew.queue.put(item, nbytes=item.nbytes, ticket=entry.ticket)
            crew.leave()
        except QueueAbortedError:
            return
        except StageFailedError as failure:
            self._fail(failure)
        except Exception as error:  # the tasks themselves, or an item without a size
            self._fail(stage_failure(worker.stage.name, error, item="the next task"))

    def _fail(self, failure: StageFailedError) -> None:
        with self._lock:
            self._failure = self._failure or failure
        self._abort()

    def _abort(self) -> None:
        for queue in self._queues:
            queue.abort()
        for stage in self._stages:
            stage.interrupt()

    def _until_deadline_s(self) -> float:
        """Seconds until the first moment at which some worker can have been busy for too long."""
        return min(self._left_s(worker) for worker, _ in self._workers) + 0.001

    def _left_s(self, worker: StageWorker) -> float:
        """Seconds until ``worker`` is taken to hang, if it goes on with what it does now."""
        return max(0.0, worker.may_take_s(self._hang_limit_s) - worker.busy_s())

    def _check_hang(self) -> None:
        for worker, thread in self._workers:
            if worker.busy_s() > worker.may_take_s(self._hang_limit_s):
                self._fail(stage_hang(worker, thread, limit_s=self._hang_limit_s))
                return


class _QueueSizer:
    """Asks the rule of ``queue_sizing`` about one queue, which the stage of ``meter`` fills, and does what it says."""

    def __init__(self, queue: BoundedQueue[Any], *, meter: StageMeter) -> None:
        self._queue, self._meter, self._window = queue, meter, QueueWindow()

    def decide(self) -> None:
        now = self._queue.counters()
        seen = self._window.look(now, at_s=time.perf_counter(), p95_produce_s=self._meter.p95_s())
        if seen is not None:
            self._queue.resize(next_capacity(now.max_items, seen, max_bytes=self._queue.max_bytes))


class _Crew:
    """The workers of one stage, counted so that the last to leave closes their queue."""

    def __init__(self, queue: BoundedQueue[Any], size: int) -> None:
        self.queue = queue
        self._present = size
        self._lock = threading.Lock()

    def leave(self) -> None:
        with self._lock:
            self._present -= 1
            if self._present == 0:
                self.queue.close()


class _TaskSource:
    """Numbers the tasks as the workers of the first stage take them."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks = enumerate(tasks)
        self._lock = threading.Lock()

    def get(self) -> Entry[Any] | None:
        with self._lock:
            found = next(self._tasks, None)
        return None if found is None else Entry(*found)
