"""A rank that stops answering in the middle of a run: the others end soon, with one message that names it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.distributed.runs import run_train
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from workers.errors import RankUnresponsiveError
from workers.megagraph.training_step import run_step

HUNG, HUNG_AT, LIMIT_S = 1, 3, 3.0


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep() -> None:
    time.sleep(600)


def run_and_hang(rank: int, world_size: int, folder: Path, how: Callable[[], None]) -> float:
    """Train until rank ``HUNG`` hangs in step ``HUNG_AT``. Returns never: all ranks fail."""

    def step_or_hang(*args: Any, step: int, **others: Any) -> float:
        if (rank, step) == (HUNG, HUNG_AT):
            (folder.parent / "hung").touch()
            how()
        return run_step(*args, step=step, **others)

    with patch("workers.megagraph.train.run_step", step_or_hang):
        run_train(rank, world_size, folder, cp=world_size, epochs=50, max_silence_s=LIMIT_S)
    raise AssertionError("the run came to its end")


@pytest.mark.parametrize("how", [stopped, asleep])
def test_all_others_end_within_the_limit_and_name_the_rank(
    pool: GlooPool, tmp_path: Path, how: Callable[[], None]
) -> None:
    with pytest.raises(RanksFailedError) as caught:
        pool.run(run_and_hang, tmp_path / "job", how)
    assert time.time() - (tmp_path / "hung").stat().st_mtime < 30
    errors = [caught.value.errors[rank] for rank in range(3) if how is asleep or rank != HUNG]
    assert all(isinstance(error, RankUnresponsiveError) for error in errors), "one that sleeps hears it, too"
    (words,) = {str(error) for error in errors}
    assert words.startswith(f"rank {HUNG} (pid ")
    assert "in step " in words  # of the last sign of life, which may be one of a step before
    if how is asleep:
        assert f"in step {HUNG_AT}" in words
        assert f"test_hung_ranks.py:{how.__code__.co_firstlineno + 1} in asleep" in words
