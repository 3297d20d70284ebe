"""Replicas that deal out the features among them: the same weights as where each holds all, cached or not."""

from pathlib import Path

import pytest

from planner.caching import NO_CACHE, CacheRule
from tests.kit.rank_runs import sampled_run
from workers.data.paths import DataPaths
from workers.mqgnn.predict import predict
from workers.mqgnn.train import train
from workers.spec import DatasetSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.run import Report

EPOCHS, BATCH = 2, 128
OFF, SMALL = NO_CACHE, CacheRule(feature_bytes=20_000, subgraph_bytes=0)


def run_once(
    rank: int, world_size: int, folder: str, features: str, cache: CacheRule, task: str = "train"
) -> tuple[dict[str, float], list[Report]]:
    reports: list[Report] = []
    spec = TrainSpec(
        kind="mqgnn",
        task=task,
        from_job=None if task == "train" else "job",
        dataset=DatasetSpec(name="sbm"),
        model=SampledGNNSpec(name="gcn", hidden_size=16, fanouts=(5, 5)),
        training=TrainingSpec(epochs=EPOCHS, batch_size=BATCH, dtype="float64", features=features, cache=cache),
    )
    run = sampled_run(
        spec,
        job_dir=f"{folder}/{features}-{cache.num_bytes}",
        data=DataPaths(root=None, cache=Path(folder) / "cache"),
        rank=rank,
        world_size=world_size,
        report=reports.append,
        model_from=None if task == "train" else f"{folder}/local-0/export",
        report_every_steps=5,
        features=features,
        cache=cache,
    )
    return (train if task == "train" else predict)(run), reports


def test_replicas_that_prefer_hot_rows_draw_what_one_process_would(pool, tmp_path):
    rule = CacheRule(feature_bytes=20_000, subgraph_bytes=0, prefer=4)
    alone = losses(run_once(0, 1, str(tmp_path / "one"), "remote", rule)[1])
    received = {}
    for place, cache in enumerate((rule, SMALL)):
        found = pool.run(run_once, str(tmp_path / f"two-{place}"), "remote", cache, world_size=2)
        received[cache.prefer] = found[0][1][-1].values["features_received_bytes"]
        assert (losses(found[0][1]) == pytest.approx(alone, rel=0, abs=1e-10)) == (cache is rule)
    assert received[4] < received[1]


def losses(reports: list[Report]) -> list[float]:
    return [report.values["loss"] for report in reports]


def test_training_is_the_same_wherever_the_features_are(pool, tmp_path):
    local = pool.run(run_once, str(tmp_path), "local", OFF, world_size=2)
    weights = (tmp_path / "local-0" / "export" / "model.safetensors").read_bytes()
    received, scores = {}, {}
    for cache in (OFF, SMALL):
        found = pool.run(run_once, str(tmp_path), "remote", cache, world_size=2)
        folder = tmp_path / f"remote-{cache.num_bytes}"
        assert (folder / "export" / "model.safetensors").read_bytes() == weights
        for (values, reports), (local_values, local_reports) in zip(found, local, strict=True):
            assert losses(reports) == losses(local_reports)
            assert values["test_accuracy"] == local_values["test_accuracy"]
        received[cache] = found[0][1][-1].values["features_received_bytes"]
        scores[cache] = found[0][1][-1].values
    assert 0 < received[SMALL] < 0.9 * received[OFF]
    assert scores[SMALL]["cache_feature_hits"] > 0 < scores[SMALL]["cache_feature_misses"]
    assert "cache_feature_hits" not in scores[OFF]
    alone = pool.run(run_once, str(tmp_path), "local", OFF, "evaluate", world_size=2)
    dealt = pool.run(run_once, str(tmp_path), "remote", OFF, "evaluate", world_size=2)
    assert [values["test_accuracy"] for values, _ in dealt] == [values["test_accuracy"] for values, _ in alone]


def test_one_rank_alone_holds_all_rows(tmp_path):
    values, reports = run_once(0, 1, str(tmp_path), "remote", SMALL)
    assert reports[-1].values["features_received_bytes"] == 0
    assert values["test_accuracy"] == pytest.approx(run_once(0, 1, str(tmp_path), "local", OFF)[0]["test_accuracy"])
