"""Every metric equals scikit-learn's, whatever shards the rows lie on, ties and missing labels included."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics

from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis, open_axis
from workers.data.graph import SPLIT_NAMES, Task
from workers.training.metrics import Scoreboard

ALL = {
    "classes": ("accuracy", "macro_f1", "roc_auc", "average_precision"),
    "multilabel": ("roc_auc", "average_precision"),
    "regression": ("mae", "rmse"),
}
EXACT = 1e-12


@pytest.fixture(scope="module")
def pool():
    with GlooPool(3) as pool:
        yield pool


def made_up(task: Task, num_outputs: int, *, num_rows: int = 157, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """(outputs with many ties, labels of which some are missing, parts of the split)."""
    random = np.random.default_rng(seed)
    outputs = np.round(random.normal(size=(num_rows, num_outputs)), 1)
    if task == "classes":
        y = random.integers(-1, num_outputs, size=num_rows)
    elif task == "multilabel":
        y = np.where(random.random((num_rows, num_outputs)) < 0.2, np.nan, random.random((num_rows, num_outputs)) < 0.3)
    else:
        y = np.where(random.random((num_rows, num_outputs)) < 0.2, np.nan, random.normal(size=(num_rows, num_outputs)))
    split = random.integers(-1, 3, size=num_rows).astype(np.int8)
    return torch.from_numpy(outputs), torch.from_numpy(y), torch.from_numpy(split)


def score(task: Task, rows: tuple[torch.Tensor, ...], *, num_batches: int = 1, axis: Axis | None = None):
    outputs, y, split = rows
    board = Scoreboard(ALL[task], task=task, num_outputs=outputs.shape[1], device=torch.device("cpu"))
    for batch in range(num_batches):
        board.add(outputs[batch::num_batches], y=y[batch::num_batches], split=split[batch::num_batches])
    return board.scores(axis or Axis())


def score_shard(rank: int, world_size: int, task: Task, rows: tuple[torch.Tensor, ...], bounds: list[int]):
    axis = open_axis((tuple(range(world_size)),), rank=rank)
    own = slice(bounds[rank], bounds[rank + 1])
    found = score(task, tuple(part[own] for part in rows), axis=axis)
    axis.close()
    return found


def expected_scores(task: Task, rows: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """By scikit-learn, one question or target at a time over its known labels."""
    outputs, y, split = (part.numpy() for part in rows)
    found = {}
    for part, name in enumerate(SPLIT_NAMES):
        scores, truth = outputs[split == part], y[split == part]
        if task == "classes":
            scores, truth = scores[truth >= 0], truth[truth >= 0]
            predicted = scores.argmax(axis=1)
            found[f"{name}_accuracy"] = sklearn_metrics.accuracy_score(truth, predicted)
            found[f"{name}_macro_f1"] = sklearn_metrics.f1_score(truth, predicted, average="macro")
            if scores.shape[1] == 2:
                scores, truth = scores[:, 1:] - scores[:, :1], truth[:, None]
            else:
                scores = torch.from_numpy(scores).softmax(dim=1).numpy()
                truth = truth[:, None] == np.arange(scores.shape[1])
        known = ~np.isnan(truth)
        columns = [(scores[known[:, t], t], truth[known[:, t], t]) for t in range(truth.shape[1])]
        if task == "regression":
            found[f"{name}_mae"] = np.mean([sklearn_metrics.mean_absolute_error(t, s) for s, t in columns])
            found[f"{name}_rmse"] = np.mean([sklearn_metrics.root_mean_squared_error(t, s) for s, t in columns])
        else:
            both = [(s, t) for s, t in columns if 0 < t.sum() < len(t)]
            found[f"{name}_roc_auc"] = np.mean([sklearn_metrics.roc_auc_score(t, s) for s, t in both])
            found[f"{name}_average_precision"] = np.mean(
                [sklearn_metrics.average_precision_score(t, s) for s, t in both]
            )
    return found


CASES = [("classes", 2), ("classes", 5), ("multilabel", 2), ("multilabel", 4), ("regression", 1), ("regression", 3)]


@pytest.mark.parametrize(("task", "num_outputs"), CASES)
@pytest.mark.parametrize("num_batches", [1, 4])
def test_one_process_scores_what_scikit_learn_scores(task, num_outputs, num_batches):
    rows = made_up(task, num_outputs)
    assert score(task, rows, num_batches=num_batches) == pytest.approx(expected_scores(task, rows), abs=EXACT)


@pytest.mark.parametrize(("task", "num_outputs"), CASES)
@pytest.mark.parametrize("bounds", [[0, 50, 100, 157], [0, 0, 156, 157]], ids=["even", "an empty shard"])
def test_shards_score_what_scikit_learn_scores_of_the_whole(pool, task, num_outputs, bounds):
    rows = made_up(task, num_outputs, seed=1)
    first, *others = pool.run(score_shard, task, rows, bounds)
    assert first == pytest.approx(expected_scores(task, rows), abs=EXACT)
    assert others == [first] * 2


def test_a_label_that_is_all_yes_has_no_ranking_and_is_left_out_of_the_average():
    outputs, y, split = made_up("multilabel", 2)
    y[:, 1] = 1.0
    alone = score("multilabel", (outputs[:, :1], y[:, :1], split))
    assert score("multilabel", (outputs, y, split)) == alone


def test_a_part_without_labels_is_left_out():
    outputs, y, split = made_up("classes", 3)
    split[split == 2] = -1
    assert {name.split("_")[0] for name in score("classes", (outputs, y, split))} == {"train", "val"}


def test_a_score_that_is_no_number_makes_the_ranking_none():
    outputs, y, split = made_up("classes", 2)
    outputs[(split == 1).nonzero()[0], 0] = torch.nan
    found = score("classes", (outputs, y, split))
    assert np.isnan(found["val_roc_auc"])
    assert not np.isnan(found["test_roc_auc"])
