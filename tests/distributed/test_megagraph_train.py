"""Whole runs: any ranks learn the same, a resumed run is the run that never stopped, the export needs no ranks."""

import math
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from planner.plan import Partition
from tests.distributed.equality import Case, Width, build, plan_of, run_parallel, spread
from tests.distributed.odd_graphs import build_graph, build_set, odd_set
from tests.distributed.runs import MODEL, RunOutcome, run_train
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from tests.kit.objectives import CROSS_ENTROPY, classify
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import TrainingDivergedError
from workers.megagraph.parallelize import ParallelModel
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import evaluate_global, run_step
from workers.ops.counter_dropout import draw_of
from workers.spec import DatasetSpec, ScheduleSpec
from workers.training.export import load_exported
from workers.training.folder import Folder

# bfloat16 has 8 bits: a product of two rounded numbers is off by 2^-8 at most.
ROUNDING = 2**-8
EPOCHS = {"epochs": 6, "eval_every_epochs": 2, "checkpoint_every_epochs": 3}


@pytest.fixture(scope="module")
def karate(pool: GlooPool, tmp_path_factory: pytest.TempPathFactory) -> RunOutcome:
    """One rank, to its end."""
    folder = tmp_path_factory.mktemp("karate") / "job"
    return pool.run(partial(run_train, **EPOCHS), folder, world_size=1)[0]


def check_same_curves(outcome: RunOutcome, expected: RunOutcome, *, after_step: int = 0) -> None:
    for name in ("loss", "train_accuracy", "val_accuracy", "test_accuracy", "best_epoch", "done"):
        wanted = [point for point in expected.series(name) if point[0] > after_step]
        found = outcome.series(name)
        assert [step for step, _ in found] == [step for step, _ in wanted], name
        assert [value for _, value in found] == pytest.approx([value for _, value in wanted], rel=1e-9), name


def test_two_ranks_on_one_graph_report_the_curves_of_one_rank(
    pool: GlooPool, karate: RunOutcome, tmp_path: Path
) -> None:
    for outcome in pool.run(partial(run_train, cp=2, **EPOCHS), tmp_path / "job", world_size=2):
        check_same_curves(outcome, karate)


def test_ranks_that_share_heads_over_parts_of_few_cut_edges_report_the_curves_of_one_rank(
    pool: GlooPool, karate: RunOutcome, tmp_path: Path
) -> None:
    metis = Partition(order="metis", balance="edges")
    job = partial(run_train, cp=2, exchange="ulysses", ulysses=2, partition=metis, **EPOCHS)
    for outcome in pool.run(job, tmp_path / "job", world_size=2):
        check_same_curves(outcome, karate)


def test_a_plan_for_parts_of_another_graph_is_refused_before_training(pool: GlooPool, tmp_path: Path) -> None:
    other = Partition(order="metis", fingerprint="of another graph")
    with pytest.raises(RanksFailedError, match=r"cut otherwise.*of another graph"):
        pool.run(partial(run_train, cp=2, partition=other, **EPOCHS), tmp_path / "job", world_size=2)


@pytest.mark.parametrize(("cp", "dp"), [(2, 1), (1, 2)])
def test_two_ranks_on_a_set_of_graphs_report_the_curves_of_one_rank(
    pool: GlooPool, tmp_path: Path, cp: int, dp: int
) -> None:
    job = partial(run_train, dataset="sbm-graphs", batch_size=16, epochs=2)
    expected = pool.run(job, tmp_path / "alone", world_size=1)[0]
    for outcome in pool.run(partial(job, cp=cp, dp=dp, num_micro_batches=8), tmp_path / "two", world_size=2):
        check_same_curves(outcome, expected)


def test_a_run_resumed_from_its_checkpoint_equals_one_that_never_stopped(
    pool: GlooPool, karate: RunOutcome, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    with pytest.raises(RanksFailedError, match="planted after step 4"):
        pool.run(partial(run_train, stop_after_step=4, **EPOCHS), folder, world_size=1)
    resumed = pool.run(partial(run_train, **EPOCHS), folder, world_size=1)[0]
    assert resumed.reports[0].step == resumed.reports[0].epoch == 4  # the checkpoint was taken after step 3
    check_same_curves(resumed, karate, after_step=3)


def test_a_run_that_gets_no_better_ends_early_on_all_ranks_and_stays_ended(pool: GlooPool, tmp_path: Path) -> None:
    job = partial(run_train, cp=2, epochs=50, eval_every_epochs=1, early_stopping=2, learning_rate=1e-9)
    for outcome in pool.run(job, tmp_path / "job", world_size=2):
        assert outcome.reports[-1].step == 3  # the first score is the best; two that are no better follow
        assert outcome.result["done"] == outcome.result["best_epoch"] == 1
    again = pool.run(job, tmp_path / "job", world_size=2)[0]
    assert [report.step for report in again.reports] == [3]


def test_a_resumed_run_keeps_its_place_in_the_schedule(pool: GlooPool, tmp_path: Path) -> None:
    job = partial(run_train, **EPOCHS, schedule=ScheduleSpec(name="cosine", warmup_epochs=2), clip_norm=0.1)
    expected = pool.run(job, tmp_path / "whole", world_size=1)[0]
    rates = [rate for _, rate in expected.series("learning_rate")]
    assert rates[:2] == [0.005, 0.01]
    assert rates[2:] == sorted(rates[2:], reverse=True)
    with pytest.raises(RanksFailedError, match="planted after step 4"):
        pool.run(partial(job, stop_after_step=4), tmp_path / "broken", world_size=1)
    resumed = pool.run(job, tmp_path / "broken", world_size=1)[0]
    check_same_curves(resumed, expected, after_step=3)
    assert resumed.series("learning_rate") == expected.series("learning_rate")[3:]


def test_a_run_may_resume_on_another_number_of_ranks(pool: GlooPool, karate: RunOutcome, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with pytest.raises(RanksFailedError, match="planted after step 5"):
        pool.run(partial(run_train, cp=2, stop_after_step=5, **EPOCHS), folder, world_size=2)
    resumed = pool.run(partial(run_train, **EPOCHS), folder, world_size=1)[0]
    check_same_curves(resumed, karate, after_step=3)


def test_a_run_that_ended_is_finished_again_without_training(pool: GlooPool, tmp_path: Path) -> None:
    job = partial(run_train, **EPOCHS)
    first, second = (pool.run(job, tmp_path / "job", world_size=1)[0] for _ in range(2))
    assert [report.step for report in second.reports] == [6]
    for name in ("done", "best_epoch", "val_accuracy", "test_accuracy"):
        assert second.result[name] == first.result[name]


def test_reports_come_first_then_every_so_many_steps_and_with_each_evaluation_and_checkpoint(
    pool: GlooPool, tmp_path: Path
) -> None:
    job = partial(run_train, report_every_steps=4, **(EPOCHS | {"epochs": 8, "eval_every_epochs": 5}))
    outcome = pool.run(job, tmp_path / "job", world_size=1)[0]
    assert [report.step for report in outcome.reports] == [1, 3, 4, 5, 6, 8]
    assert [step for step, _ in outcome.series("val_accuracy")] == [5, 8]
    assert [report.step for report in outcome.reports if report.checkpoint] == [3, 6, 8]
    always = {"loss", "learning_rate", "step_time_s", "items_per_s", "peak_memory_bytes"}
    assert all(always <= report.values.keys() for report in outcome.reports)
    assert {report.total_steps for report in outcome.reports} == {8}
    assert outcome.result == dict(outcome.reports[-1].values)


def test_the_export_scores_in_one_process_what_the_ranks_reported(pool: GlooPool, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    result = pool.run(partial(run_train, cp=2, **(EPOCHS | {"dtype": "float32"})), folder, world_size=2)[0].result
    model = load_exported(Folder(folder / "export"))
    scores = score_alone(model, cache=tmp_path / "cache")
    assert scores["test_accuracy"] == result["test_accuracy"]
    assert scores["val_accuracy"] == result["val_accuracy"]


def score_alone(model: torch.nn.Module, *, cache: Path) -> dict[str, float]:
    dataset = load_dataset(DatasetSpec(name="karate"), paths=DataPaths(root=None, cache=cache))
    case = Case(dataset, spec=MODEL, dtype=torch.float32)
    parallel, dealer = spread(case, rank=0, model=model, plan=plan_of(case))
    return evaluate_global(parallel, objective=classify(dataset.num_classes), batches=dealer.evaluation(num_replicas=1))


def test_a_loss_that_is_no_number_ends_all_ranks_and_names_step_and_culprit(pool: GlooPool) -> None:
    sound, sick = build_graph(9, [(0, 1)], seed=1), build_graph(5, [(0, 1)], seed=2)
    sick.features.matrix[3, 0] = math.nan
    case = Case(build_set([sound, sick]), dp=2)  # the smaller graph is dealt to the second replica
    with pytest.raises(RanksFailedError, match="the loss became nan in step 1 on rank 1; the first") as caught:
        pool.run(run_parallel, case, world_size=2)
    errors = list(caught.value.errors.values())
    assert [type(error) for error in errors] == [TrainingDivergedError] * 2
    assert [error.details for error in errors] == [{"step": 1, "ranks": [1], "unit": "features"}] * 2


def run_sick(rank: int, world_size: int, case: Case, unit: str) -> None:
    """One step with a number that is none among the weights of ``unit``."""
    model, plan = build(case), plan_of(case)
    with torch.no_grad():
        next(model.units()[unit].parameters()).view(-1)[0] = math.nan
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    optimizer = torch.optim.SGD(own_parameters(model).values())
    step = {"share": dealer.epoch(0)[0], "actions": plan.actions[rank], "step": 1, "draw": draw_of(9, 1)}
    run_step(parallel, optimizer=optimizer, loss=CROSS_ENTROPY, **step)


@pytest.mark.parametrize("stages", [(Width(5, cp=2),), (Width(4), Width(1)), (Width(3), Width(2))], ids=str)
@pytest.mark.parametrize("unit", ["degree", "block.0", "head"])
def test_the_first_unit_whose_output_is_no_number_is_named(
    pool: GlooPool, stages: tuple[Width, ...], unit: str
) -> None:
    case = Case(odd_set(), stages=stages, num_micro_batches=2, spec=MODEL)
    with pytest.raises(RanksFailedError, match=f"the first number that was none came out of unit {unit} on") as caught:
        pool.run(run_sick, case, unit, world_size=2)
    errors = list(caught.value.errors.values())
    assert [type(error) for error in errors] == [TrainingDivergedError] * 2
    assert {error.details["unit"] for error in errors} == {unit}


def run_and_spoil(rank: int, world_size: int, folder: Path) -> None:
    """An update of step 6, right before its checkpoint, leaves a weight of the head that is no number."""

    def spoil(parallel: ParallelModel, *, step: int, **others: Any) -> float:
        loss = run_step(parallel, step=step, **others)
        if step == 6:
            with torch.no_grad():
                parallel.model.head.project.bias[0] = math.inf
        return loss

    with patch("workers.megagraph.train.run_step", spoil):
        run_train(rank, world_size, folder, cp=world_size, **EPOCHS | {"epochs": 9, "eval_every_epochs": 9})


def test_a_model_that_is_no_good_replaces_no_checkpoint(pool: GlooPool, tmp_path: Path) -> None:
    with pytest.raises(RanksFailedError, match=r"parameter head\.project\.bias is no finite number any more"):
        pool.run(run_and_spoil, tmp_path / "job", world_size=2)
    assert [path.name for path in (tmp_path / "job" / "checkpoints").iterdir()] == ["step-00000003"]


def test_products_in_bfloat16_learn_as_float32_does_on_any_ranks(pool: GlooPool, tmp_path: Path) -> None:
    job = partial(run_train, epochs=20, dtype="float32", eval_every_epochs=20)
    exact = pool.run(job, tmp_path / "exact", world_size=1)[0].series("loss")
    rounded = pool.run(partial(job, precision="bfloat16"), tmp_path / "one", world_size=1)[0].series("loss")
    for name, spread_out in (("rows", {"cp": 2}), ("stages", {"stages": (Width(3), Width(2))})):
        found = pool.run(partial(job, precision="bfloat16", **spread_out), tmp_path / name, world_size=2)[0].series(
            "loss"
        )
        assert [loss for _, loss in found] == pytest.approx([loss for _, loss in rounded], rel=ROUNDING)
    assert [loss for _, loss in rounded] == pytest.approx([loss for _, loss in exact], rel=10 * ROUNDING)
    assert rounded != exact


@pytest.mark.parametrize("change", [{"cp": 1}, {"cp": 2, "dp": 2}])
def test_a_plan_for_another_number_of_ranks_is_refused(pool: GlooPool, tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(RanksFailedError, match=r"the run is of kind .megagraph. with 2; plan again"):
        pool.run(partial(run_train, **change), tmp_path / "job", world_size=2)
