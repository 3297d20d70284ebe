"""Losses are sums over rows that shards may split; labels that are not known count nothing."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.distributed.odd_graphs import one_graph
from workers.data.graph import GraphDataset
from workers.errors import ObjectiveInvalidError
from workers.spec import TrainingSpec
from workers.training.losses import build_loss
from workers.training.objective import Objective, resolve_objective
from workers.training.optimizer import build_optimizer, weight_matrices

GENERATOR = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(12, 3, dtype=torch.float64, generator=GENERATOR)
CLASSES = torch.arange(12) % 3
NUMBERS = torch.randn(12, 3, dtype=torch.float64, generator=GENERATOR)
YES_NO = (NUMBERS > 0).double()


@pytest.mark.parametrize(
    ("name", "y", "expected"),
    [
        ("cross_entropy", CLASSES, functional.cross_entropy(OUTPUTS, CLASSES)),
        ("binary_cross_entropy", YES_NO, functional.binary_cross_entropy_with_logits(OUTPUTS, YES_NO)),
        (
            "binary_cross_entropy",
            CLASSES,
            functional.binary_cross_entropy_with_logits(OUTPUTS, functional.one_hot(CLASSES).double()),
        ),
        ("l1", NUMBERS, functional.l1_loss(OUTPUTS, NUMBERS)),
        ("mse", NUMBERS, functional.mse_loss(OUTPUTS, NUMBERS)),
        ("huber", NUMBERS, functional.huber_loss(OUTPUTS, NUMBERS)),
    ],
)
def test_a_loss_over_its_rows_is_torchs_mean_and_shards_add_up(name, y, expected):
    loss = build_loss(Objective("regression", 3, loss=name, metric="mae"))
    torch.testing.assert_close(loss(OUTPUTS, y) / 12, expected)
    torch.testing.assert_close(sum(loss(OUTPUTS[i::5], y[i::5]) for i in range(5)), loss(OUTPUTS, y))
    assert loss(OUTPUTS[:0], y[:0]) == 0


@pytest.mark.parametrize("name", ["binary_cross_entropy", "l1"])
def test_what_is_not_known_adds_neither_loss_nor_gradient(name):
    loss = build_loss(Objective("multilabel", 3, loss=name, metric="roc_auc"))
    y = YES_NO.clone()
    y[2, 1] = y[5] = math.nan
    outputs = OUTPUTS.clone().requires_grad_()
    loss(outputs, y).backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad == 0).equal(y.isnan())


def test_class_weights_multiply_the_rows_of_their_class():
    loss = build_loss(Objective("classes", 3, loss="cross_entropy", metric="accuracy", class_weights=(1.0, 0.0, 2.0)))
    rows = functional.cross_entropy(OUTPUTS, CLASSES, reduction="none")
    torch.testing.assert_close(loss(OUTPUTS, CLASSES), rows[CLASSES == 0].sum() + 2 * rows[CLASSES == 2].sum())


def test_balanced_weights_have_a_mean_of_one_over_the_training_rows():
    dataset = one_graph()
    weights = resolve_objective(TrainingSpec(class_weights="balanced"), dataset).class_weights
    graph = dataset.graphs[0]
    trained = graph.y[(graph.split == 0) & (graph.y >= 0)]
    assert np.array(weights)[trained].mean() == pytest.approx(1.0)
    assert np.bincount(trained, weights=np.array(weights)[trained]).std() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"loss": "mse"}, "choose cross_entropy or binary_cross_entropy"),
        ({"metric": "rmse"}, "choose accuracy or macro_f1 or roc_auc or average_precision"),
        ({"class_weights": (1.0,)}, "has 1 entries"),
    ],
)
def test_an_objective_that_does_not_fit_the_labels_is_refused_with_those_that_do(training, message):
    with pytest.raises(ObjectiveInvalidError, match=message):
        resolve_objective(TrainingSpec(**training), one_graph())


@pytest.mark.parametrize(
    ("name", "task", "expected"),
    [
        ("Cora", "classes", ("cross_entropy", "accuracy")),
        ("Tolokers", "classes", ("cross_entropy", "roc_auc")),
        ("ZINC", "regression", ("l1", "mae")),
        ("ESOL", "regression", ("mse", "rmse")),
        ("Peptides-func", "multilabel", ("binary_cross_entropy", "average_precision")),
    ],
)
def test_loss_and_metric_follow_from_the_data_set(name, task, expected):
    dataset = GraphDataset(name, (), num_features=1, num_classes=2, fingerprint="", task=task)
    objective = resolve_objective(TrainingSpec(), dataset)
    assert (objective.loss, objective.metric) == expected


def test_an_update_is_clipped_by_the_norm_of_all_gradients_together():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    optimizer = build_optimizer(model, spec=TrainingSpec(clip_norm=0.5), decayed=weight_matrices)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    norm = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_only_what_the_rule_names_decays(name):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    spec = TrainingSpec(optimizer=name, weight_decay=0.1, learning_rate=0.1)
    optimizer = build_optimizer(model, spec=spec, decayed=weight_matrices)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert type(optimizer).__name__.lower() == name
    assert [key for key, parameter in model.named_parameters() if not parameter.equal(before[key])] == ["0.weight"]
