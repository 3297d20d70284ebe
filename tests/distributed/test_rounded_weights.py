"""Where products are of bfloat16, sharded units gather their weights as such, and learn what whole ones learn."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.distributed.runs import MODEL, RunOutcome, StoppedError, run_train
from tests.kit.gloo_pool import GlooPool, RanksFailedError

UNITS = ("features", "degree", "block.0", "head")
ROUNDED = {"dtype": "float32", "precision": "bfloat16", "epochs": 6, "eval_every_epochs": 3}


@pytest.mark.parametrize("layout", [{"dp": 2}, {"cp": 2}, {"dp": 2, "cp": 2, "shard_degree": 2}, {"dp": 3}], ids=str)
def test_a_run_of_sharded_units_is_that_of_whole_ones(pool: GlooPool, tmp_path: Path, layout: dict[str, int]) -> None:
    ranks = layout.get("dp", 1) * layout.get("cp", 1)
    whole = partial(run_train, **ROUNDED, **{key: value for key, value in layout.items() if key != "shard_degree"})
    sharded = partial(run_train, **ROUNDED, **layout, sharded=UNITS)
    expected = pool.run(whole, tmp_path / "whole", world_size=ranks)[0].series("loss")
    found = pool.run(sharded, tmp_path / "sharded", world_size=ranks)[0].series("loss")
    assert len(found) == ROUNDED["epochs"]
    # what ranks add up in another order is off by roundings of float32, a thousandth of those of bfloat16
    assert [loss for _, loss in found] == pytest.approx([loss for _, loss in expected], rel=2**-17)


def _watch_traffic(rank: int, world_size: int, folder: Path, **run: Any) -> tuple[int, set[torch.dtype], RunOutcome]:
    """(bytes that a rank gives for one gathering of all units, types of what is summed over ranks, the run)."""
    gathered: list[int] = []
    summed: set[torch.dtype] = set()
    gather, scatter = dist.all_gather_single, dist.reduce_scatter_single

    def all_gather(output_tensor: Tensor, input_tensor: Tensor, **others: Any) -> Any:
        gathered.append(input_tensor.nbytes)
        return gather(output_tensor, input_tensor, **others)

    def reduce_scatter(**given: Any) -> Any:
        summed.add(given["input"].dtype)
        return scatter(**given)

    with (
        patch("torch.distributed.all_gather_single", all_gather),
        patch("torch.distributed.reduce_scatter_single", reduce_scatter),
    ):
        outcome = run_train(rank, world_size, folder, sharded=UNITS, **run)
    return sum(gathered[: len(UNITS)]), summed, outcome


def test_weights_travel_in_half_the_bytes_and_gradients_in_float32(pool: GlooPool, tmp_path: Path) -> None:
    run = partial(_watch_traffic, dp=2, **ROUNDED | {"epochs": 1})
    exact = pool.run(partial(run, precision="float32"), tmp_path / "exact", world_size=2)
    rounded = pool.run(run, tmp_path / "rounded", world_size=2)
    d, features, classes = MODEL.hidden_size, 34, 4  # of karate, whose nodes know their own number
    weights = features * d + 6 * d * d + d * classes
    for (bytes_exact, _, _), (bytes_rounded, summed, _) in zip(exact, rounded, strict=True):
        assert bytes_exact - bytes_rounded == 2 * weights // len(rounded)
        assert summed == {torch.float32}


def test_a_checkpoint_of_rounded_parts_goes_on_under_another_plan(pool: GlooPool, tmp_path: Path) -> None:
    job = partial(run_train, checkpoint_every_epochs=3, **ROUNDED)
    expected = pool.run(job, tmp_path / "through", world_size=1)[0].series("loss")
    sharded = partial(job, dp=2, sharded=UNITS, stop_after_step=4)
    with pytest.raises(RanksFailedError) as stopped:
        pool.run(sharded, tmp_path / "job", world_size=2)
    assert {type(error) for error in stopped.value.errors.values()} == {StoppedError}
    goes_on = pool.run(job, tmp_path / "job", world_size=1)[0].series("loss")
    assert [step for step, _ in goes_on] == [4, 5, 6]
    assert [loss for _, loss in goes_on] == pytest.approx([loss for _, loss in expected[3:]], rel=2**-10)
