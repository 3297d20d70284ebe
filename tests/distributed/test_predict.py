"""A trained model in use: predictions cover every row once, agree with the reported scores, and ask for no one rank."""

import json
from functools import partial
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from planner.plan import MQGNNPlan
from tests.distributed.equality import Case, plan_of
from tests.distributed.odd_graphs import odd_set
from tests.distributed.runs import MODEL
from tests.kit.rank_runs import queue_budgets
from workers.data.datasets import load_dataset
from workers.data.paths import DataPaths
from workers.errors import ExportMismatchError
from workers.runtime import run_rank
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.export_config import check_fits
from workers.training.folder import Folder
from workers.training.run import RankRun

SAGE = SampledGNNSpec(name="graphsage", hidden_size=8, fanouts=(3, 2))


def spec_of(kind: str, **use: str) -> TrainSpec:
    return TrainSpec(
        kind=kind,
        dataset=DatasetSpec(name="karate" if kind == "megagraph" else "sbm"),
        model=MODEL if kind == "megagraph" else SAGE,
        training=TrainingSpec(epochs=2, batch_size=256, dtype="float64"),
        **use,
    )


def run(rank: int, world_size: int, folder: Path, *, kind: str, job: str, **use: str) -> dict[str, float]:
    plan = MQGNNPlan(
        world_size=world_size,
        fanouts=SAGE.fanouts,
        batch_size=256,
        queues=queue_budgets(max_bytes=2**20),
        pipelined=False,
    )
    if kind == "megagraph":
        plan = plan_of(Case(odd_set(), cp=world_size, spec=MODEL))
    return run_rank(
        RankRun(
            spec=spec_of(kind, **use),
            plan=plan,
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data=DataPaths(root=None, cache=folder / "cache"),
            job_dir=Folder(folder / job),
            report=lambda report: None,
            model_from=Folder(folder / use["from_job"] / "export") if use else None,
        )
    )


def read(folder: Path) -> list[dict]:
    manifest = json.loads((folder / "manifest.json").read_text())
    tables = {name: pyarrow.parquet.read_table(folder / name) for name in manifest["rows"]}
    assert {name: len(table) for name, table in tables.items()} == manifest["rows"]
    return sorted((row for table in tables.values() for row in table.to_pylist()), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", ["megagraph", "mqgnn"])
def test_two_ranks_predict_what_one_predicts_for_every_node_and_as_reported(pool, tmp_path, kind):
    trained = pool.run(partial(run, kind=kind, job="trained"), tmp_path, world_size=1)[0]
    use = partial(run, kind=kind, from_job="trained")
    alone = pool.run(partial(use, task="predict", job="alone"), tmp_path, world_size=1)[0]
    both = pool.run(partial(use, task="predict", job="both"), tmp_path, world_size=2)
    rows, rows_of_two = read(tmp_path / "alone" / "predictions"), read(tmp_path / "both" / "predictions")
    dataset = load_dataset(spec_of(kind).dataset, paths=DataPaths(root=None, cache=tmp_path / "cache"))
    assert [row["id"] for row in rows] == [row["id"] for row in rows_of_two] == list(range(dataset.num_nodes))
    assert len(json.loads((tmp_path / "both" / "predictions" / "manifest.json").read_text())["rows"]) == 2
    for one, other in zip(rows, rows_of_two, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-9)
        assert sum(one["probabilities"]) == pytest.approx(1.0)
    tested = [row["label"] == row["prediction"] for row in rows if row["split"] == "test"]
    for scores in (trained, alone, *both):
        assert scores["test_accuracy"] == pytest.approx(sum(tested) / len(tested))


def test_evaluating_scores_and_writes_nothing(pool, tmp_path):
    trained = pool.run(partial(run, kind="megagraph", job="trained"), tmp_path, world_size=1)[0]
    scored = partial(run, kind="megagraph", job="scored", task="evaluate", from_job="trained")
    found = pool.run(scored, tmp_path, world_size=2)
    assert [scores["val_accuracy"] for scores in found] == [trained["val_accuracy"]] * 2
    assert not (tmp_path / "scored").exists()


def test_a_model_is_refused_for_data_or_a_spec_of_another_shape(pool, tmp_path):
    pool.run(partial(run, kind="mqgnn", job="trained"), tmp_path, world_size=1)
    paths = DataPaths(root=None, cache=tmp_path / "cache")
    sbm, karate = (load_dataset(DatasetSpec(name=name), paths=paths) for name in ("sbm", "karate"))
    spec = spec_of("mqgnn", task="predict", from_job="trained")
    check_fits(Folder(tmp_path / "trained" / "export"), spec=spec, dataset=sbm)
    with pytest.raises(ExportMismatchError, match="takes 16 features, karate has 34"):
        check_fits(Folder(tmp_path / "trained" / "export"), spec=spec, dataset=karate)
    other = spec.model_copy(update={"model": SAGE.model_copy(update={"hidden_size": 4})})
    with pytest.raises(ExportMismatchError, match="repeat the model of that job"):
        check_fits(Folder(tmp_path / "trained" / "export"), spec=other, dataset=sbm)
