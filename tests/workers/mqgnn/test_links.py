"""Links predicted: scores by hand, and a job from data set to export."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch.nn import functional

from tests.kit.rank_runs import queue_budgets, sampled_run
from tests.workers.mqgnn.graphs import clustered_graph
from workers.comm.axis import Axis
from workers.data.build import build_dataset
from workers.data.graph import TEST, VALIDATION
from workers.data.links import hide_links
from workers.data.paths import DataPaths
from workers.errors import ObjectiveInvalidError
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.link_scores import LinkBoard, all_edges
from workers.mqgnn.sampling.links import LinkSeeder
from workers.runtime import run_rank
from workers.spec import DatasetSpec, LinkSpec, SampledGNNSpec, TrainingSpec, TrainSpec
from workers.training.losses import build_loss
from workers.training.objective import Objective, resolve_objective

GRAPH = clustered_graph(200)
LINKS = LinkSpec(num_val=0.1, num_test=0.2, eval_negatives=60, embedding_size=6)
DATASET = hide_links(build_dataset("made up", graphs=(GRAPH,), num_classes=3), LINKS)


def test_scores_are_those_of_ranks_counted_one_by_one():
    embeddings = torch.from_numpy(np.random.default_rng(0).integers(-2, 3, size=(200, 2)).astype(np.float64))  # ties
    found = LinkBoard(DATASET, axis=Axis()).scores(embeddings)
    links, z = DATASET.links, embeddings.numpy()
    seeder = LinkSeeder(all_edges(DATASET), num_negatives=60)
    for part, name in ((VALIDATION, "val"), (TEST, "test")):
        sources, targets = links.sources[links.split == part], links.targets[links.split == part]
        false = seeder.false_targets(sources, targets, key=stream_key(Stream.FALSE_LINKS, 0))
        true_scores = [z[s] @ z[t] for s, t in zip(sources, targets, strict=True)]
        false_scores = [[z[s] @ z[t] for t in row] for s, row in zip(sources, false, strict=True)]
        ranks = np.array(
            [
                1 + sum(f > true for f in row) + 0.5 * sum(f == true for f in row)
                for true, row in zip(true_scores, false_scores, strict=True)
            ]
        )
        assert found[f"{name}_mrr"] == pytest.approx((1 / ranks).mean())
        for most in (1, 3, 10, 50):
            assert found[f"{name}_hits_at_{most}"] == pytest.approx((ranks <= most).mean())
        truth = np.repeat([1, 0], len(ranks))
        scores = np.concatenate([true_scores, [row[0] for row in false_scores]])
        assert found[f"{name}_roc_auc"] == pytest.approx(roc_auc_score(truth, scores))
        assert found[f"{name}_average_precision"] == pytest.approx(average_precision_score(truth, scores))


def test_false_links_of_an_evaluation_are_no_edges_shown_or_hidden():
    links, edges = DATASET.links, all_edges(DATASET)
    false = LinkSeeder(edges, num_negatives=60).false_targets(links.sources, links.targets, key=0)
    true = set(zip(GRAPH.indices.tolist(), np.repeat(np.arange(200), np.diff(GRAPH.indptr)).tolist(), strict=True))
    assert not {(int(s), int(t)) for s, row in zip(links.sources, false, strict=True) for t in row} & true


def test_embeddings_that_are_no_numbers_are_ranked_last():
    found = LinkBoard(DATASET, axis=Axis()).scores(torch.full((200, 2), torch.nan))
    assert found["test_hits_at_50"] == 0
    assert np.isnan(found["test_roc_auc"])


def test_the_loss_is_torchs_over_each_link_and_its_false_ones():
    scores = torch.randn(7, 4, dtype=torch.float64)
    wanted = functional.one_hot(torch.zeros(7, dtype=torch.int64), 4).double()
    loss = build_loss(Objective("links", 6, loss="binary_cross_entropy", metric="mrr"))
    expected = functional.binary_cross_entropy_with_logits(scores, wanted)
    torch.testing.assert_close(loss(scores, torch.zeros(7)) / 7, expected)
    assert loss(scores[:0], torch.zeros(0)) == 0


def job(folder: Path, cache: Path, *, model_from: Path | None = None, **use) -> dict[str, float]:
    spec = TrainSpec(
        kind="mqgnn",
        dataset=DatasetSpec(name="sbm", links=LINKS),
        model=SampledGNNSpec(name="graphsage", hidden_size=16, fanouts=(5, 5), dropout=0.0),
        training=TrainingSpec(epochs=3, batch_size=512, metric="hits_at_10", eval_every_epochs=1),
        **use,
    )
    data, queues = DataPaths(root=None, cache=cache), queue_budgets(max_bytes=2**24)
    return run_rank(sampled_run(spec, job_dir=folder, data=data, model_from=model_from, queues=queues))


def test_a_job_trains_on_links_and_its_model_is_used_for_scores_and_embeddings(tmp_path):
    trained = job(tmp_path / "job", tmp_path)
    assert trained["test_roc_auc"] > 0.6
    assert trained["test_hits_at_10"] > 10 / 61
    use = {"from_job": "job", "model_from": tmp_path / "job" / "export"}
    evaluated = job(tmp_path / "evaluated", tmp_path, task="evaluate", **use)
    assert evaluated["test_hits_at_10"] == trained["test_hits_at_10"]
    job(tmp_path / "predicted", tmp_path, task="predict", **use)
    manifest = json.loads((tmp_path / "predicted" / "predictions" / "manifest.json").read_text())
    assert manifest["task"] == "links"
    rows = pyarrow.parquet.read_table(tmp_path / "predicted" / "predictions" / "part-00000.parquet").to_pydict()
    assert rows["id"] == list(range(1000))
    assert len(rows["prediction"][0]) == 6


def test_what_does_not_fit_links_is_refused():
    with pytest.raises(ValueError, match=r"dataset\.links is for kind mqgnn"):
        TrainSpec(kind="megagraph", dataset=DatasetSpec(name="sbm", links=LINKS), model={"name": "gt"})
    for wrong in ({"metric": "accuracy"}, {"loss": "mse"}, {"class_weights": "balanced"}):
        with pytest.raises(ObjectiveInvalidError):
            resolve_objective(TrainingSpec(**wrong), DATASET)
