"""The sides and judgements of the ``mqgnn_*`` benchmarks, in small."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.metrics import roc_auc_score

from tests.benchmarks import mqgnn_accuracy, mqgnn_overlap
from tests.benchmarks.mqgnn_accuracy import Cell, Scores, holm
from tests.benchmarks.mqgnn_overlap import compare
from tests.benchmarks.mqgnn_soak import GROWTH_BAR, Level, judge, soak
from tests.benchmarks.paper_loop import GCN, LayerLoop
from tests.benchmarks.peer_accuracy import roc_auc
from tests.benchmarks.peer_models import build
from tests.benchmarks.side_process import fastest
from tests.workers.mqgnn.graphs import clustered_graph
from workers.models.sampled import build_sampled_gnn, learn_degrees
from workers.spec import SPEC_OF_MODEL


def test_the_fastest_way_is_the_one_of_least_seconds() -> None:
    assert fastest([{"seconds": 2}, {"seconds": 1}, {"seconds": 3}], lambda way: way["seconds"]) == {"seconds": 1}


@pytest.mark.parametrize("rule", ["ladies", "fastgcn"])
def test_the_papers_loop_makes_an_estimate_of_what_all_neighbours_give(rule: str) -> None:
    graph = clustered_graph(60)
    adjacency = sp.csr_matrix((np.ones(len(graph.indices)), graph.indices, graph.indptr))
    x, seeds = graph.features.gather(np.arange(60)).astype(np.float32), [np.int64(v) for v in (5, 17, 3)]
    whole = LayerLoop(adjacency, x, graph.y, rule=rule, sizes=[60])
    expected = (whole.whole().to_dense() @ torch.from_numpy(x))[[5, 17, 3]]
    rows, (block,), y = whole(seeds)
    torch.testing.assert_close(torch.sparse.mm(block, rows), expected, rtol=1e-5, atol=1e-5)
    assert y.tolist() == graph.y[[5, 17, 3]].tolist()
    some, drawn = LayerLoop(adjacency, x, graph.y, rule=rule, sizes=[8]), []
    for _ in range(600):
        rows, (block,), _ = some(seeds)
        drawn.append(torch.sparse.mm(block, rows))
    error = torch.stack(drawn).std(dim=0) / 600**0.5
    assert ((torch.stack(drawn).mean(dim=0) - expected).abs() < 5 * error + 1e-5).all()


def test_the_papers_loop_gives_an_adjacency_to_each_layer_outermost_first() -> None:
    graph = clustered_graph(60)
    adjacency = sp.csr_matrix((np.ones(len(graph.indices)), graph.indices, graph.indptr))
    x = graph.features.gather(np.arange(60)).astype(np.float32)
    rows, blocks, _ = LayerLoop(adjacency, x, graph.y, rule="ladies", sizes=[4, 6])([np.int64(1), np.int64(2)])
    assert GCN(x.shape[1], 3, 2)(rows, blocks).shape == (2, 3)
    assert blocks[0].shape[1] == len(rows)
    assert blocks[1].shape == (2, blocks[0].shape[0])


@pytest.mark.parametrize("name", mqgnn_accuracy.MODELS)
def test_both_sides_of_a_pair_begin_with_the_same_weights(name: str) -> None:
    degrees = torch.tensor([3, 1, 4, 1, 5])
    torch.manual_seed(7)
    spec = SPEC_OF_MODEL[name](name=name, hidden_size=8, fanouts=(3, 2))
    ours = build_sampled_gnn(spec, num_features=6, num_classes=3)
    learn_degrees(ours, degrees)
    torch.manual_seed(7)
    plain = build(name, num_features=6, hidden_size=8, num_layers=2, num_classes=3, dropout=0.5, degrees=degrees)
    pairs = list(zip(ours.state_dict().values(), plain.state_dict().values(), strict=True))
    assert pairs
    for ours_value, plain_value in pairs:
        torch.testing.assert_close(ours_value, plain_value)


def test_the_plain_sides_area_under_the_curve_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    out, y = (
        torch.from_numpy(rng.integers(4, size=(50, 2)).astype(np.float32)),
        torch.from_numpy(rng.integers(2, size=50)),
    )
    assert roc_auc(out, y) == pytest.approx(roc_auc_score(y, out[:, 1] - out[:, 0]))


def test_holm_lets_fall_what_stands_out_among_many_alone() -> None:
    assert holm([0.04, 0.001, 0.5]) == [False, True, False]
    assert holm([0.04, 0.03]) == [False, False]
    assert holm([0.04]) == [True]


def test_a_cell_that_loses_shows_in_all_figures() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, size=(2, 10))
    same = Cell("Cora", "gcn", tuple(82 + noise[0]), tuple(82 + noise[1]))
    worse = Cell("Cora", "gat", tuple(80 + noise[0]), tuple(83 + noise[1]))
    sound, lost = mqgnn_accuracy.judge([same]), mqgnn_accuracy.judge([same, worse])
    assert all(sound.verdicts.values()), sound.figures
    assert (lost.figures["cells_significant"], lost.figures["below_published"]) == (1, 0)
    assert lost.figures["pooled_delta_ci_max"] == pytest.approx(1.5, abs=0.2)


def test_a_plain_side_that_is_weaker_than_published_shows() -> None:
    weak = Cell("Cora", "gat", (81.8, 82.0), (81.7, 81.9))
    assert mqgnn_accuracy.judge([weak]).figures["below_published"] == 1


def test_scores_that_are_kept_are_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    assert Scores(path).get("Cora", "gcn", 0, "ours", run=lambda: 0.8) == pytest.approx(80)
    assert Scores(path).get("Cora", "gcn", 0, "ours", run=pytest.fail) == pytest.approx(80)
    assert Scores(path).get("Cora", "gcn", 1, "ours", run=lambda: 0.7) == pytest.approx(70)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 2


def test_overlap_tells_its_figures_and_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqgnn_overlap, "HIDDEN_SIZES", (8,))
    monkeypatch.setattr(mqgnn_overlap, "ROUNDS", 1)
    outcome = compare(clustered_graph(3000))
    assert set(outcome.figures) == set(outcome.verdicts) == {"bottleneck_busy", "speedup", "balance"}
    assert 0 < outcome.figures["bottleneck_busy"] <= 1


def levels(*, memory_per_s: int = 0, files_per_s: int = 0) -> list[Level]:
    return [Level(s, 10**9 + s * memory_per_s, 20 + s * files_per_s, 4, 0) for s in range(100)]


def test_a_soak_sees_what_grows() -> None:
    assert all(judge([levels(), levels()]).verdicts.values())
    leaking = judge([levels(), levels(memory_per_s=10**6, files_per_s=1)])
    assert leaking.figures["memory_growth"] > GROWTH_BAR
    assert leaking.figures["files_grown"] > 0
    assert leaking.verdicts == {
        "memory_growth": False, "files_grown": False, "threads_grown": True, "shared_bytes_grown": True
    }  # fmt: skip


def test_a_soak_trains_until_its_time_is_over(tmp_path: Path) -> None:
    (only,) = soak(0, 1, 0.0, tmp_path)
    assert only.memory_bytes > 10**7
    assert (tmp_path / "0" / "export").is_dir()
