"""Several replicas of the sampled runtime against one process over the same global batches."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.kit.objectives import classify
from tests.kit.rank_runs import sampled_run
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import Settings, train_by_hand
from workers.comm.axis import Axis, open_axis
from workers.data.paths import DataPaths
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import AllReduce
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.run import Report

# 180 training nodes or so: the last batch of 32 is short, and parts of 3 ranks are uneven
GRAPH = clustered_graph(300, degree=10)
EXACT = {"rtol": 0, "atol": 1e-10}


def line(rank: int, world_size: int) -> Axis:
    return open_axis((tuple(range(world_size)),), rank=rank)


def train_replica(rank: int, world_size: int, settings: Settings) -> tuple[dict[str, torch.Tensor], list[float]]:
    return train_by_hand(GRAPH, settings, axis=line(rank, world_size))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("fanouts", [(-1, -1), (3, 3)])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("model", ["graphsage", "gcn"])
def test_replicas_equal_one_process_over_the_same_global_batches(pool, model, dropout, fanouts, world_size):
    settings = Settings(model=model, dropout=dropout, fanouts=fanouts, epochs=2)
    weights, losses = train_by_hand(GRAPH, settings)
    for found, found_losses in pool.run(train_replica, settings, world_size=world_size):
        assert found_losses == pytest.approx(losses, rel=0, abs=1e-10)
        for name in weights:
            torch.testing.assert_close(found[name], weights[name], **EXACT)


def test_rows_learned_for_each_node_equal_those_of_one_process(pool):
    settings = Settings(fanouts=(3, 3), dropout=0.5, node_embedding_size=5)
    weights, losses = train_by_hand(GRAPH, settings)
    assert weights["node_table.weight"].shape == (300, 5)
    found = pool.run(train_replica, settings, world_size=3)
    for replica, replica_losses in found:
        assert replica_losses == pytest.approx(losses, rel=0, abs=1e-9)
        for name in weights:
            torch.testing.assert_close(replica[name], weights[name], rtol=0, atol=1e-7)  # Adam divides small by small
    assert torch.equal(found[0][0]["node_table.weight"], found[2][0]["node_table.weight"])


@pytest.mark.parametrize("model", ["graphsage", "gcn"])
def test_replicas_end_with_the_same_weights_bit_for_bit(pool, model):
    settings = Settings(model=model, fanouts=(3, 2), dropout=0.5, dtype=torch.float32, pipelined=True)
    (one, _), (other, _) = pool.run(train_replica, settings, world_size=2)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_pipelined_run_of_replicas_equals_the_serial_one_bit_for_bit(pool):
    serial = Settings(dropout=0.5, dtype=torch.float32)
    (weights, losses), _ = pool.run(train_replica, serial, world_size=2)
    pipelined = replace(serial, pipelined=True, num_sampling_workers=2)
    (again, losses_again), _ = pool.run(train_replica, pipelined, world_size=2)
    assert losses == losses_again
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_a_step_without_seeds_for_some_replicas_ends_and_counts_each_seed_once(pool):
    num_train = int((GRAPH.split == 0).sum())
    settings = Settings(batch_size=num_train - 1, epochs=2)  # the second batch has one seed for four replicas
    weights, losses = train_by_hand(GRAPH, replace(settings, fanouts=(-1, -1)))
    found = pool.run(train_replica, replace(settings, fanouts=(-1, -1)), world_size=4)
    assert len(losses) == 4
    for replica, replica_losses in found:
        assert replica_losses == pytest.approx(losses, rel=0, abs=1e-10)
        for name in weights:
            torch.testing.assert_close(replica[name], weights[name], **EXACT)


def add_up(rank: int, world_size: int) -> tuple[list[float], list[float]]:
    """Gradient of rank r is r + 1; a parameter that only rank 0 uses has one there alone."""
    model = torch.nn.ModuleList([torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)])
    rule = AllReduce(model, axis=line(rank, world_size))
    rule.zero()
    loss = model[0](torch.full((1, 2), rank + 1.0)).sum()
    if rank == 0:
        loss = loss + model[1](torch.ones(1, 2)).sum()
    loss.backward()
    combined = rule.combine(torch.tensor(float(rank)))
    return [parameter.grad[0, 0].item() for parameter in model.parameters()], combined.tolist()


def test_gradients_are_summed_and_losses_gathered_also_where_a_replica_does_not_use_a_parameter(pool):
    assert pool.run(add_up, world_size=3) == [([6.0, 1.0], [0.0, 1.0, 2.0])] * 3


def score(rank: int, world_size: int, name: str) -> dict[str, float]:
    torch.manual_seed(1)
    spec = SampledGNNSpec(name=name, hidden_size=16, fanouts=(2, 2, 2))
    model = build_sampled_gnn(spec, num_features=8, num_classes=3).double()
    evaluator = Evaluator(
        GRAPH, axis=line(rank, world_size), device=torch.device("cpu"), dtype=torch.float64, chunk_bytes=4096
    )
    objective = replace(classify(3), metric="roc_auc")
    return evaluator.scores(model, objective=objective)


@pytest.mark.parametrize("name", ["graphsage", "gcn"])
def test_evaluation_over_shards_scores_what_one_process_scores(pool, name):
    alone = score(0, 1, name)
    assert {"val_accuracy", "test_roc_auc"} <= alone.keys()
    assert pool.run(score, name, world_size=4) == [alone] * 4


def train_whole(
    rank: int, world_size: int, job_dir: str, cache: str, epochs: int = 4
) -> tuple[dict[str, float], list[Report]]:
    reports: list[Report] = []

    def report(entry: Report) -> None:
        reports.append(entry)
        if world_size > 1:
            dist.barrier()  # as under Ray Train: a rank that reports more or less than another would hang here

    spec = TrainSpec(
        kind="mqgnn",
        dataset=DatasetSpec(name="sbm"),
        model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(-1, -1), dropout=0.0),
        training=TrainingSpec(epochs=epochs, batch_size=128, eval_every_epochs=2, dtype="float64"),
    )
    run = sampled_run(
        spec,
        job_dir=job_dir,
        data=DataPaths(root=None, cache=Path(cache)),
        rank=rank,
        world_size=world_size,
        report=report,
        report_every_steps=3,
    )
    return train(run), reports


def test_a_whole_run_on_two_ranks_reports_what_one_rank_reports(pool, tmp_path):
    alone, alone_reports = train_whole(0, 1, str(tmp_path / "one"), str(tmp_path / "cache"))
    found = pool.run(train_whole, str(tmp_path / "two"), str(tmp_path / "cache"), world_size=2)
    for values, reports in found:
        assert values["test_accuracy"] == alone["test_accuracy"]
        assert values["val_accuracy"] == alone["val_accuracy"]
        assert [(report.step, report.epoch, report.checkpoint is None) for report in reports] == [
            (report.step, report.epoch, report.checkpoint is None) for report in alone_reports
        ]
        assert [report.values["loss"] for report in reports] == pytest.approx(
            [report.values["loss"] for report in alone_reports], rel=0, abs=1e-10
        )
    assert (tmp_path / "two" / "export" / "model.safetensors").exists()
    assert {path.name for path in (tmp_path / "two" / "checkpoints").glob("step-*/*")} == {
        "__0_0.distcp",
        "__1_0.distcp",
        ".metadata",
        "manifest.json",
    }


def resume_apart(rank: int, world_size: int, job_dirs: list[str], cache: str) -> list[int]:
    """Each rank sees a storage of its own."""
    return [report.step for report in train_whole(rank, world_size, job_dirs[rank], cache)[1]]


def test_ranks_resume_from_the_checkpoint_that_the_first_rank_sees(pool, tmp_path):
    early, late, cache = tmp_path / "early", tmp_path / "late", str(tmp_path / "cache")
    pool.run(train_whole, str(late), cache, 2, world_size=2)
    shutil.copytree(late, early)
    pool.run(train_whole, str(late), cache, 4, world_size=2)
    assert {path.name for path in (late / "checkpoints").iterdir()} == {"step-00000010", "step-00000020"}
    steps = pool.run(resume_apart, [str(early), str(late)], cache, world_size=2)
    assert steps[0] == steps[1]
    assert steps[0][0] == 11


def resume_alone(rank: int, world_size: int, job_dir: str, cache: str) -> int:
    return len(train_whole(rank, world_size, job_dir, cache)[1])


def test_a_run_may_go_on_with_another_number_of_replicas(pool, tmp_path):
    pool.run(train_whole, str(tmp_path / "job"), str(tmp_path / "cache"), world_size=2)
    assert pool.run(resume_alone, str(tmp_path / "job"), str(tmp_path / "cache"), world_size=3) == [1, 1, 1]
