"""What a run strives for on its data set: loss, metric and class weights, by the spec or, where it is silent, the set.

spec.training + data set ─▶ Objective ─▶ losses.build_loss, metrics.Scoreboard, evaluation.BestModel
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from workers.data.graph import TRAIN, GraphDataset, Task
from workers.errors import ObjectiveInvalidError
from workers.spec import LossName, MetricName, TrainingSpec

Name = TypeVar("Name", LossName, MetricName)

_LOSSES: dict[Task, tuple[LossName, ...]] = {  # the first is the default
    "classes": ("cross_entropy", "binary_cross_entropy"),
    "multilabel": ("binary_cross_entropy",),
    "regression": ("mse", "l1", "huber"),
    "links": ("binary_cross_entropy",),
}
_METRICS: dict[Task, tuple[MetricName, ...]] = {
    "classes": ("accuracy", "macro_f1", "roc_auc", "average_precision"),
    "multilabel": ("roc_auc", "average_precision"),
    "regression": ("mae", "rmse"),
    "links": ("mrr", "hits_at_1", "hits_at_3", "hits_at_10", "hits_at_50", "roc_auc", "average_precision"),
}
# What is reported beside the metric that chooses the best model.
_ALSO: dict[Task, tuple[MetricName, ...]] = {"classes": ("accuracy",), "links": ("mrr", "hits_at_10", "roc_auc")}
# What the published results of these sets are given in (and ZINC is trained with, Dwivedi et al., JMLR 2023).
_METRIC_OF_SET: dict[str, MetricName] = {
    "Tolokers": "roc_auc",
    "Minesweeper": "roc_auc",
    "HIV": "roc_auc",
    "Peptides-func": "average_precision",
    "ESOL": "rmse",
}
_NO_CLASSES: dict[Task, str] = {"regression": "numbers to predict", "links": "links to predict"}
_LOSS_OF_SET: dict[str, LossName] = {"ZINC": "l1"}


@dataclass(frozen=True)
class Objective:
    """Loss and metrics of one run. ``metric`` chooses the best model; ``metrics`` are reported, it among them."""

    task: Task
    num_outputs: int
    loss: LossName
    metric: MetricName
    class_weights: tuple[float, ...] | None = None

    @property
    def metrics(self) -> tuple[MetricName, ...]:
        """Some are reported in any case, whatever chooses the best model: accuracy wherever there are classes."""
        return tuple(dict.fromkeys([self.metric, *_ALSO.get(self.task, ())]))


def resolve_objective(training: TrainingSpec, dataset: GraphDataset) -> Objective:
    """The objective of ``training`` on ``dataset``. Raises ``ObjectiveInvalidError`` where they do not fit."""
    losses, metrics = _LOSSES[dataset.task], _METRICS[dataset.task]
    return Objective(
        task=dataset.task,
        num_outputs=dataset.num_classes,
        loss=_fitting("loss", training.loss or _LOSS_OF_SET.get(dataset.name, losses[0]), losses, dataset),
        metric=_fitting("metric", training.metric or _METRIC_OF_SET.get(dataset.name, metrics[0]), metrics, dataset),
        class_weights=_class_weights(training, dataset),
    )


def _fitting(field: str, name: Name, fitting: tuple[Name, ...], dataset: GraphDataset) -> Name:
    if name not in fitting:
        raise ObjectiveInvalidError(
            f"training.{field} {name!r} does not fit {dataset.name}, a {dataset.task} task;"
            f" choose {' or '.join(fitting)}",
            field=field,
            fitting=list(fitting),
        )
    return name


def _class_weights(training: TrainingSpec, dataset: GraphDataset) -> tuple[float, ...] | None:
    """One weight per class; ``balanced``: n / (C n_c) over the n training labels, so that their mean is 1."""
    weights = training.class_weights
    if weights is None:
        return None
    if dataset.task in ("regression", "links"):
        raise ObjectiveInvalidError(
            f"training.class_weights: {dataset.name} has {_NO_CLASSES[dataset.task]}, no classes"
        )
    if weights != "balanced":
        if len(weights) != dataset.num_classes:
            raise ObjectiveInvalidError(
                f"training.class_weights has {len(weights)} entries, {dataset.name} {dataset.num_classes} classes"
            )
        return weights
    if dataset.task == "multilabel":
        raise ObjectiveInvalidError(
            f"training.class_weights 'balanced' is for classes; {dataset.name} has yes-or-no labels: give a list"
        )
    y = np.concatenate([graph.y[graph.split == TRAIN] for graph in dataset.graphs])
    counts = np.bincount(y[y >= 0], minlength=dataset.num_classes)
    return tuple((counts.sum() / (dataset.num_classes * np.maximum(counts, 1))).tolist())
