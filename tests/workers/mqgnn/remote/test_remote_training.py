"""A run whose mini-batches are made by actors is the run that makes them itself, bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from planner.errors import PlanInvalidError
from planner.plan import QueueBudget
from planner.sampling import SamplingRule
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.remote.played_actors import PlayedActors, lose, played
from tests.workers.mqgnn.test_train import StopError, last_weights
from workers.data.paths import DataPaths
from workers.mqgnn.remote.batch_maker import BatchMaker
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, LinkSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.run import RankRun, Report

REMOTE = SamplingRule(placement="remote", num_actors=2)
SBM = DatasetSpec(name="sbm")  # 600 training nodes
SAGE = SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(4, 3))
GATV2 = {"name": "gatv2", "hidden_size": 16, "num_heads": 2, "fanouts": (4, 3)}  # its rows are gathered


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def spec_of(dataset: DatasetSpec, model, rule: SamplingRule, **training) -> TrainSpec:
    settings = {"epochs": 3, "batch_size": 128, "eval_every_epochs": 3, "checkpoint_every_epochs": 3} | training
    fields = {"kind": "mqgnn", "dataset": dataset, "model": model}
    return TrainSpec(**fields, training=TrainingSpec(**settings, sampling=rule))


def run_of(spec: TrainSpec, cache: Path, job_dir: Path, report=lambda report: None) -> RankRun:
    remote = {
        "sampling": spec.training.sampling,
        "num_sampling_workers": 3,
        "queues": (QueueBudget(name="remote", max_items=3, max_bytes=2**24),),
    }
    plan = {"report_every_steps": 1} | (remote if spec.training.sampling.is_remote else {})
    return sampled_run(spec, job_dir=job_dir, data=DataPaths(root=None, cache=cache), report=report, **plan)


def train_remotely(run: RankRun, *, spoil=lambda actor, number: None) -> PlayedActors:
    makers = [BatchMaker(run.spec, plan=run.plan, paths=run.data) for _ in range(run.plan.sampling.num_actors)]
    with played([maker.make for maker in makers], spoil=spoil) as actors:
        train(replace(run, samplers=actors))
    return actors


def assert_same_weights(one: Path, other: Path) -> None:
    found, expected = last_weights(other), last_weights(one)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("dataset", "model", "training"),
    [
        (SBM, SAGE, {}),
        (SBM, GATV2, {}),
        (SBM, SAGE, {"dtype": "float64"}),
        (DatasetSpec(name="sbm", links=LinkSpec(embedding_size=8)), SAGE, {"batch_size": 512, "epochs": 2}),
        (DatasetSpec(name="sbm-graphs"), SAGE, {"batch_size": 16}),
    ],
    ids=["in place", "gathered", "float64", "links", "graphs"],
)
def test_a_remote_run_equals_a_local_one_bit_for_bit(cache, tmp_path, dataset, model, training):
    train(run_of(spec_of(dataset, model, SamplingRule(), **training), cache, tmp_path / "local"))
    actors = train_remotely(run_of(spec_of(dataset, model, REMOTE, **training), cache, tmp_path / "remote"))
    assert all(actors.asked), "one of the actors was never asked"
    assert_same_weights(tmp_path / "local", tmp_path / "remote")


def test_an_actor_that_dies_changes_nothing(cache, tmp_path):
    train(run_of(spec_of(SBM, SAGE, SamplingRule()), cache, tmp_path / "local"))
    spoil = lose((0, 2), (0, 3), (1, 4))
    train_remotely(run_of(spec_of(SBM, SAGE, REMOTE), cache, tmp_path / "remote"), spoil=spoil)
    assert_same_weights(tmp_path / "local", tmp_path / "remote")


def test_a_run_resumes_in_the_middle_of_an_epoch(cache, tmp_path):
    saved = {"checkpoint_every_steps": 7}  # epochs have 5 steps
    train(run_of(spec_of(SBM, SAGE, SamplingRule(), **saved), cache, tmp_path / "local"))
    spec = spec_of(SBM, SAGE, REMOTE, **saved)

    def stop(report: Report) -> None:
        if report.step == 9:
            raise StopError

    with pytest.raises(StopError):
        train_remotely(run_of(spec, cache, tmp_path / "remote", stop))
    steps = []
    train_remotely(run_of(spec, cache, tmp_path / "remote", lambda report: steps.append(report.step)))
    assert steps == [*range(8, 16)]
    assert_same_weights(tmp_path / "local", tmp_path / "remote")


def test_what_is_under_way_is_a_metric(cache, tmp_path):
    reports: list[Report] = []
    train_remotely(run_of(spec_of(SBM, SAGE, REMOTE), cache, tmp_path, reports.append))
    for report in reports:
        assert 0 <= report.values["remote_queue_in_flight"] <= 3
        assert {"remote_s", "remote_queue_depth", "remote_queue_capacity"} <= report.values.keys()
        assert "sample_s" not in report.values


def test_a_plan_for_other_sampling_is_refused(cache, tmp_path):
    run = run_of(spec_of(SBM, SAGE, SamplingRule()), cache, tmp_path)
    with pytest.raises(PlanInvalidError, match=r"the plan is for the sampling .*placement='local'.*; plan again"):
        train(replace(run, spec=spec_of(SBM, SAGE, REMOTE)))


def test_a_run_without_actors_cannot_ask_any(cache, tmp_path):
    with pytest.raises(PlanInvalidError, match="the plan has actors sample, and this run was given none"):
        train(run_of(spec_of(SBM, SAGE, REMOTE), cache, tmp_path))
