"""The pool itself: results in order, groups of any size, failures that name ranks, and a clean end."""

import os
import signal
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
import torch.distributed as dist

from tests.kit.gloo_pool import GlooPool, RanksFailedError


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def sum_of_ranks(rank: int, world_size: int, offset: int) -> int:
    value = torch.tensor(rank + offset)
    if world_size > 1:
        dist.all_reduce(value)
    return int(value)


def process_id(rank: int, world_size: int) -> int:
    return os.getpid()


def fail_on(rank: int, world_size: int, failing: int) -> None:
    if rank == failing:
        raise KeyError(f"planted on {rank}")
    dist.barrier()


def die_on(rank: int, world_size: int, dying: int) -> None:
    if rank == dying:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang(rank: int, world_size: int) -> None:
    time.sleep(60)


def group_exists(rank: int, world_size: int) -> bool:
    return dist.is_initialized()


def test_ranks_form_a_group_of_the_asked_size(pool: GlooPool) -> None:
    assert pool.run(sum_of_ranks, 0, world_size=3) == [3, 3, 3]
    assert pool.run(sum_of_ranks, 10, world_size=2) == [21, 21]


def test_one_rank_runs_without_a_process_group(pool: GlooPool) -> None:
    assert pool.run(group_exists, world_size=1) == [False]


def test_ranks_live_on_between_runs(pool: GlooPool) -> None:
    assert pool.run(process_id) == pool.run(process_id)


def test_a_failing_rank_is_named_with_its_error_and_its_peers_do_not_hang(pool: GlooPool) -> None:
    with pytest.raises(RanksFailedError, match="planted on 1") as caught:
        pool.run(fail_on, 1, timeout_s=30)
    assert isinstance(caught.value.errors[1], KeyError)
    assert pool.run(sum_of_ranks, 0) == [3, 3, 3]


def test_a_killed_rank_is_named_and_replaced(pool: GlooPool) -> None:
    with pytest.raises(RanksFailedError, match=r"rank 2: the process died with exit code -9"):
        pool.run(die_on, 2, timeout_s=30)
    assert pool.run(sum_of_ranks, 0) == [3, 3, 3]


def test_ranks_that_hang_are_ended_and_named_together(pool: GlooPool) -> None:
    with pytest.raises(RanksFailedError, match=r"ranks 0, 1: no answer within 1 s"):
        pool.run(hang, world_size=2, timeout_s=1)
    assert pool.run(sum_of_ranks, 0, world_size=2) == [1, 1]


def test_close_leaves_no_process() -> None:
    with GlooPool(2) as pool:
        pids = pool.run(process_id)
    assert not any(psutil.pid_exists(pid) for pid in pids)
