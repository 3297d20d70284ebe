"""A run that stops under one plan goes on under another, on other ranks, as if nothing had happened."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.equality import Width
from tests.distributed.runs import RunOutcome, run_train
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from workers.training.export import load_exported
from workers.training.folder import Folder

EPOCHS = {"epochs": 4, "eval_every_epochs": 2, "checkpoint_every_epochs": 2}
ONE_GRAPH = {"dataset": "karate", **EPOCHS}
MANY_GRAPHS = {"dataset": "sbm-graphs", "batch_size": 64, **EPOCHS}
# of Graphormer's five units here: features, degree, distance, block.0, head
TWO_STAGES = (Width(3), Width(2))
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "four shards to two": (ONE_GRAPH, {"cp": 4}, {"cp": 2}),
    "four replicas to two shards": (MANY_GRAPHS, {"dp": 4}, {"cp": 2}),
    "sharded units to one rank": (MANY_GRAPHS, {"dp": 2, "sharded": ("features", "block.0", "head")}, {}),
    "two stages to one": (MANY_GRAPHS, {"stages": TWO_STAGES, "num_micro_batches": 4}, {}),
    "one stage to two wider ones": (
        MANY_GRAPHS,
        {"dp": 2},
        {"stages": (Width(2, cp=2), Width(3, dp=2)), "num_micro_batches": 4, "stage_schedule": "zero_bubble"},
    ),
}


def size_of(layout: dict[str, Any]) -> int:
    stages = layout.get("stages", (Width(5, cp=layout.get("cp", 1), dp=layout.get("dp", 1)),))
    return sum(width.cp * width.dp for width in stages)


@pytest.fixture(scope="module")
def unbroken(pool: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunOutcome, Path]]:
    """One rank, to its end, on each data set."""
    found = {}
    for job in (ONE_GRAPH, MANY_GRAPHS):
        folder = tmp_path_factory.mktemp(str(job["dataset"])) / "job"
        found[job["dataset"]] = pool.run(partial(run_train, **job), folder, world_size=1)[0], folder
    return found


@pytest.mark.parametrize(("job", "before", "after"), CHANGES.values(), ids=CHANGES.keys())
def test_a_run_goes_on_under_another_plan_with_the_curve_of_one_that_never_stopped(
    pool: GlooPool,
    unbroken: dict[str, tuple[RunOutcome, Path]],
    tmp_path: Path,
    job: dict[str, Any],
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    expected, exported = unbroken[job["dataset"]]
    steps_per_epoch = expected.reports[-1].total_steps // 4
    stop = 2 * steps_per_epoch + 1  # one step after the checkpoint
    folder = tmp_path / "job"
    with pytest.raises(RanksFailedError, match=f"planted after step {stop}"):
        pool.run(partial(run_train, stop_after_step=stop, **job, **before), folder, world_size=size_of(before))
    for outcome in pool.run(partial(run_train, **job, **after), folder, world_size=size_of(after)):
        assert outcome.reports[0].step == stop
        for name in ("loss", "val_accuracy", "test_accuracy"):
            wanted = [(step, value) for step, value in expected.series(name) if step >= stop]
            assert [step for step, _ in outcome.series(name)] == [step for step, _ in wanted]
            values = [value for _, value in outcome.series(name)]
            assert values == pytest.approx([value for _, value in wanted], rel=1e-10), name
    found, exact = (load_exported(Folder(path / "export")).state_dict() for path in (folder, exported))
    assert found.keys() == exact.keys()
    for name, tensor in exact.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-8, atol=1e-8)


def test_a_run_goes_on_in_the_middle_of_an_epoch(pool: GlooPool, tmp_path: Path) -> None:
    job = {"dataset": "sbm-graphs", "batch_size": 8, "epochs": 2, "eval_every_epochs": 2}
    (expected,) = pool.run(partial(run_train, **job), tmp_path / "whole", world_size=1)
    steps_per_epoch = expected.reports[-1].total_steps // 2
    assert steps_per_epoch > 2
    saved = steps_per_epoch + 1
    job["checkpoint_every_steps"] = saved
    with pytest.raises(RanksFailedError, match=f"planted after step {saved + 1}"):
        pool.run(partial(run_train, stop_after_step=saved + 1, **job, dp=2), tmp_path / "job", world_size=2)
    (outcome,) = pool.run(partial(run_train, **job), tmp_path / "job", world_size=1)
    wanted = [(step, value) for step, value in expected.series("loss") if step > saved]
    assert [step for step, _ in outcome.series("loss")] == [step for step, _ in wanted]
    assert [value for _, value in outcome.series("loss")] == pytest.approx([value for _, value in wanted], rel=1e-10)
