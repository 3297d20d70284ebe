import json
import os
import threading
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from planner.errors import PlanInvalidError
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import graph_of_edges
from workers.data.graph import GraphDataset
from workers.data.paths import DataPaths
from workers.errors import DatasetInvalidError, TrainingDivergedError
from workers.mqgnn.train import train
from workers.mqgnn.trained_data import trained_graph
from workers.runtime import run_rank
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.export import load_exported
from workers.training.folder import Folder
from workers.training.run import RankRun, Report

SBM = DatasetSpec(name="sbm")
STEPS_PER_EPOCH = 5  # it has 600 training nodes


class StopError(Exception):
    """Stands for whatever ends a run in the middle."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def keep_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_run(
    cache: Path, job_dir: Path, *, report, dataset: DatasetSpec = SBM, plan: dict | None = None, **training
) -> RankRun:
    spec = TrainSpec(
        kind="mqgnn",
        dataset=dataset,
        model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 3)),
        training=TrainingSpec(
            **{"epochs": 4, "batch_size": 128, "eval_every_epochs": 2, "checkpoint_every_epochs": 2} | training
        ),
    )
    settings = {"batch_size": 128, "report_every_steps": 3} | (plan or {})
    return sampled_run(spec, job_dir=job_dir, data=DataPaths(root=None, cache=cache), report=report, **settings)


def run_all(cache: Path, job_dir: Path, **settings) -> tuple[dict[str, float], list[Report]]:
    reports: list[Report] = []
    return train(make_run(cache, job_dir, report=reports.append, **settings)), reports


def exported(job_dir: Path) -> dict[str, torch.Tensor]:
    return load_exported(Folder(job_dir / "export")).state_dict()


def last_weights(job_dir: Path) -> dict[str, torch.Tensor]:
    newest, joined = max((job_dir / "checkpoints").glob("step-*")), job_dir / "joined.pt"
    dcp_to_torch_save(newest, joined)
    saved = torch.load(joined, weights_only=True)
    return {name.removeprefix("model/"): tensor for name, tensor in saved.items() if name.startswith("model/")}


def test_a_run_learns_and_its_last_report_tells_the_end(cache, tmp_path):
    values, reports = run_all(cache, tmp_path, epochs=10)
    assert values["done"] == 1
    assert values["test_accuracy"] > 0.8
    assert values["best_epoch"] in (2, 4, 6, 8, 10)
    assert reports[-1].values == values
    assert reports[-1].step == reports[-1].total_steps == 10 * STEPS_PER_EPOCH


def test_reports_come_after_the_first_step_then_by_the_plan_and_at_every_evaluation(cache, tmp_path):
    _, reports = run_all(cache, tmp_path)
    assert [report.step for report in reports] == [1, 3, 6, 9, 10, 12, 15, 18, 20]
    assert [report.epoch for report in reports] == [1, 1, 2, 2, 2, 3, 3, 4, 4]
    assert [report.step for report in reports if "val_accuracy" in report.values] == [10, 20]
    assert [report.step for report in reports if report.checkpoint] == [10, 20]


def test_every_report_says_how_fast_and_how_large(cache, tmp_path):
    _, reports = run_all(cache, tmp_path)
    names = {"loss", "learning_rate", "step_time_s", "items_per_s", "peak_memory_bytes"}
    names |= {"wait_s", "compute_s", "exchange_s", "update_s", "sample_s", "prepare_s"}
    names |= {"sample_queue_depth", "prepare_queue_depth", "prepare_queue_high_water_bytes"}
    for report in reports:
        assert names <= report.values.keys()
        assert all(isinstance(value, float) for value in report.values.values())
        parts = sum(report.values[name] for name in ("wait_s", "compute_s", "exchange_s", "update_s"))
        assert report.values["step_time_s"] == pytest.approx(parts)
        assert 0 < report.values["items_per_s"] <= 128 / report.values["step_time_s"] * 1.001


@pytest.mark.parametrize("plan", [{"pipelined": False}, {"num_sampling_workers": 3}])
def test_the_plan_changes_how_a_run_goes_but_not_its_weights(cache, tmp_path, plan):
    run_all(cache, tmp_path / "one")
    run_all(cache, tmp_path / "other", plan=plan)
    one, other = last_weights(tmp_path / "one"), last_weights(tmp_path / "other")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("stop_at", [11, 15, 19])
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(cache, tmp_path, stop_at):
    _, unbroken = run_all(cache, tmp_path / "unbroken", plan={"report_every_steps": 1})
    reports: list[Report] = []

    def stop(report: Report) -> None:
        reports.append(report)
        if report.step == stop_at:
            raise StopError

    with pytest.raises(StopError):
        train(make_run(cache, tmp_path / "broken", report=stop, plan={"report_every_steps": 1}))
    _, after = run_all(cache, tmp_path / "broken", plan={"report_every_steps": 1})
    assert [(report.step, report.epoch) for report in after] == [(step, (step - 1) // 5 + 1) for step in range(11, 21)]
    assert [report.values["loss"] for report in after] == [report.values["loss"] for report in unbroken[10:]]
    one, other = last_weights(tmp_path / "unbroken"), last_weights(tmp_path / "broken")
    assert all(torch.equal(one[name], other[name]) for name in one)
    one, other = exported(tmp_path / "unbroken"), exported(tmp_path / "broken")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_stopped_after_its_last_checkpoint_still_ends_well(cache, tmp_path):
    expected, _ = run_all(cache, tmp_path)
    values, reports = run_all(cache, tmp_path)
    assert len(reports) == 1
    assert values["done"] == 1
    assert values["test_accuracy"] == expected["test_accuracy"]


def test_the_export_is_the_best_model_and_works_alone(cache, tmp_path):
    from workers.data.datasets import load_dataset

    values, _ = run_all(cache, tmp_path, epochs=6)
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config["test_accuracy"] == values["test_accuracy"]
    graph = load_dataset(SBM, paths=DataPaths(root=None, cache=cache)).graphs[0]
    degrees = torch.from_numpy(graph.indptr).diff()
    targets = torch.arange(graph.num_nodes).repeat_interleave(degrees)
    edge_index = torch.stack((torch.from_numpy(graph.indices).long(), targets))
    x = torch.from_numpy(graph.features.gather(targets.unique().numpy()))
    assert len(x) == graph.num_nodes
    predicted = load_exported(Folder(tmp_path / "export"))(x, edge_index).argmax(dim=1).numpy()
    test = graph.split == 2
    assert (predicted == graph.y)[test].mean() == pytest.approx(values["test_accuracy"], abs=1.5 / test.sum())


def test_a_loss_that_is_not_finite_ends_the_run_with_step_and_rank(cache, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "edges.csv").write_text("source,target\n" + "".join(f"{n},{n + 1}\n" for n in range(9)))
    (tmp_path / "own" / "nodes.csv").write_text("id,label,x\n" + "".join(f"{n},{n % 2},3e38\n" for n in range(10)))
    before = threading.active_count()
    with pytest.raises(TrainingDivergedError, match=r"the loss became (nan|inf) in step 1 on rank 0;"):
        run_all(cache, tmp_path / "job", dataset=DatasetSpec(path=str(tmp_path / "own")))
    assert threading.active_count() == before
    assert not (tmp_path / "job" / "checkpoints").exists()


def test_a_plan_for_other_fanouts_is_refused(cache, tmp_path):
    with pytest.raises(PlanInvalidError, match=r"the plan is for fanouts \(4, 2\), the spec asks for \(4, 3\)"):
        run_all(cache, tmp_path, plan={"fanouts": (4, 2)})


def test_a_set_without_training_nodes_is_refused():
    graph = graph_of_edges([(0, 1)], num_nodes=3)
    graph.split[:] = 2
    dataset = GraphDataset(name="tests only", graphs=(graph,), num_features=3, num_classes=2, fingerprint="")
    with pytest.raises(DatasetInvalidError, match="tests only has no node in its training split"):
        trained_graph(dataset)


def test_the_number_of_threads_is_the_plans(cache, tmp_path):
    found = set()

    def report(entry: Report) -> None:
        found.add(torch.get_num_threads())

    run_rank(make_run(cache, tmp_path, report=report, plan={"num_threads": 2}, epochs=1))
    assert found == {2}


def test_memory_does_not_grow_with_the_epochs(cache, tmp_path):
    resident_bytes: dict[int, int] = {}

    def report(entry: Report) -> None:
        resident_bytes[entry.epoch] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    train(make_run(cache, tmp_path, report=report, epochs=40, checkpoint_every_epochs=40, eval_every_epochs=5))
    # the mini-batches of 30 epochs hold 10 MB together
    assert resident_bytes[40] - resident_bytes[10] < 4 * 2**20
