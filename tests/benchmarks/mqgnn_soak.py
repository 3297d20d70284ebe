"""Thirty minutes of one job after another on the same two replicas: memory, handles and shared memory stay flat.

Each job is a whole run of the runtime (``workers.mqgnn.train``) on the built-in ``sbm``: stages in threads, RaCoM
between the replicas, evaluations, checkpoints, export; models and samplers take turns. After each, a replica tells its
resident memory, open file descriptors and threads, and what lies in ``/dev/shm``, of all processes: run it on a machine
where nobody else puts anything there. The first quarter of the time is warm-up (code is compiled, caches fill);
figures are of the last quarter over the second, the replica that grew most.
"""

import gc
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from planner.sync import SyncRule
from tests.benchmarks.frame import Outcome, main
from tests.kit.gloo_pool import GlooPool
from tests.kit.rank_runs import queue_budgets, sampled_run
from workers.comm.axis import open_axis
from workers.data.paths import DataPaths
from workers.model_specs.sampled import SamplerName
from workers.mqgnn.train import train
from workers.spec import SPEC_OF_MODEL, DatasetSpec, TrainingSpec, TrainSpec
from workers.training.run import RankRun

DURATION_S, NUM_RANKS = 30 * 60.0, 2
JOBS: tuple[tuple[str, SamplerName], ...] = (("graphsage", "uniform"), ("gat", "labor"), ("gcn", "ladies+f+d"))
RULE = SyncRule(name="racom", staleness=4, drift=0.5, first_period=4, base_period=4)
# One part in fifty: the allocator keeps pages of its own choice, a leak of a page per job would be ten times as much.
GROWTH_BAR = 1.02


@dataclass(frozen=True)
class Level:
    """What a replica holds after a job, ``seconds`` after the first began."""

    seconds: float
    memory_bytes: int
    num_files: int
    num_threads: int
    shared_bytes: int


def level(seconds: float) -> Level:
    """Of this process, now."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    shared = os.statvfs("/dev/shm")
    return Level(
        seconds=seconds,
        memory_bytes=resident * os.sysconf("SC_PAGE_SIZE"),
        num_files=len(os.listdir("/proc/self/fd")),
        num_threads=threading.active_count(),
        shared_bytes=(shared.f_blocks - shared.f_bfree) * shared.f_frsize,
    )


def job(rank: int, world_size: int, folder: Path, *, model: str, sampler: SamplerName, epochs: int = 6) -> RankRun:
    """One whole training."""
    spec = SPEC_OF_MODEL[model](name=model, hidden_size=32, fanouts=(8, 4), sampler=sampler)
    training = TrainingSpec(epochs=epochs, batch_size=128, eval_every_epochs=2, checkpoint_every_epochs=3, sync=RULE)
    return sampled_run(
        TrainSpec(kind="mqgnn", dataset=DatasetSpec(name="sbm"), model=spec, training=training),
        job_dir=folder,
        data=DataPaths(root=None, cache=folder.parent / "cache"),
        rank=rank,
        world_size=world_size,
        queues=queue_budgets(max_items=3, max_bytes=2**24),
        report_every_steps=10,
    )


def soak(rank: int, world_size: int, duration_s: float, root: Path) -> list[Level]:
    """Jobs, one after the other, until the first rank's ``duration_s`` are over; the level after each."""
    axis, begin = open_axis((tuple(range(world_size)),), rank=rank), time.monotonic()
    levels: list[Level] = []
    try:
        for number, (model, sampler) in enumerate(itertools.cycle(JOBS)):
            train(job(rank, world_size, root / str(number), model=model, sampler=sampler))
            levels.append(level(time.monotonic() - begin))
            if axis.first_says(int(levels[-1].seconds > duration_s), device=torch.device("cpu")):
                return levels
    finally:
        axis.close()
    raise AssertionError("jobs never end")


def judge(ranks: Sequence[Sequence[Level]]) -> Outcome:
    """The last quarter of the time over the second."""

    def grown(of: Callable[[Level], int], compare: Callable[[float, float], float]) -> float:
        found = []
        for levels in ranks:
            end = levels[-1].seconds
            second = [of(seen) for seen in levels if end / 4 < seen.seconds <= end / 2]
            last = [of(seen) for seen in levels if seen.seconds > 3 * end / 4]
            assert second, "too few jobs: none ended in the second quarter"
            found.append(compare(statistics.median(last), statistics.median(second)))
        return max(found)

    figures = {
        "memory_growth": grown(lambda seen: seen.memory_bytes, lambda last, second: last / second),
        "files_grown": grown(lambda seen: seen.num_files, lambda last, second: last - second),
        "threads_grown": grown(lambda seen: seen.num_threads, lambda last, second: last - second),
        "shared_bytes_grown": grown(lambda seen: seen.shared_bytes, lambda last, second: last - second),
    }
    verdicts = {name: figure <= (GROWTH_BAR if name == "memory_growth" else 0) for name, figure in figures.items()}
    first = ranks[0]
    every = max(1, len(first) // 16)
    details = {"jobs": len(first), "seconds": first[-1].seconds, "levels": [vars(seen) for seen in first[::every]]}
    return Outcome(figures, verdicts, details)


def measure(duration_s: float = DURATION_S) -> Outcome:
    """Two replicas, thirty minutes."""
    with GlooPool(NUM_RANKS) as pool, tempfile.TemporaryDirectory() as folder:
        return judge(pool.run(soak, duration_s, Path(folder), timeout_s=2 * duration_s + 600))


if __name__ == "__main__":
    sys.exit(main("mqgnn_soak", measure))
