"""Metrics over all shards, equal to what one process would compute: what travels are counts, sums, or single shards.

    accuracy, macro F1      predicted, actual and correct per class (int64)
    MAE, RMSE               sums of errors and their squares per target (float64)
    ROC-AUC, AP             the scores of one shard at a time go round; every shard ranks its own positives among them

A ranking metric needs every pair of a positive and another row, yet no sorted list of all rows: for each of its own
positives a shard counts the positives and negatives of the visiting shard above it. So a rank holds its own scores and
those of one other shard, and the counts are exact integers. Rows without a label are left out, per label.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from workers.comm.axis import Axis
from workers.data.graph import SPLIT_NAMES, Task
from workers.spec import MetricName
from workers.training.losses import is_known
from workers.training.objective import Objective

LOWER_IS_BETTER: frozenset[MetricName] = frozenset({"mae", "rmse"})


class Tally(Protocol):
    """What one shard gathers for some metrics."""

    def add(self, outputs: Tensor, *, y: Tensor, split: Tensor) -> None:
        """Take in predictions [n, C] with their labels and parts of the split."""

    def scores(self, axis: Axis) -> dict[str, float]:
        """``{split}_{metric}`` over all shards on ``axis``, the same on each. Collective."""


class Scoreboard:
    """Gathers one evaluation of a model, shard by shard; ``metrics`` as ``workers.training.objective`` allows them."""

    def __init__(self, metrics: Iterable[MetricName], *, task: Task, num_outputs: int, device: torch.device) -> None:
        asked = tuple(metrics)
        self._asked = {f"{split}_{metric}" for split in SPLIT_NAMES for metric in asked}
        self._tallies: list[Tally] = []
        if {"accuracy", "macro_f1"} & set(asked):
            self._tallies.append(ClassCounts(num_outputs, device=device))
        if {"mae", "rmse"} & set(asked):
            self._tallies.append(ErrorSums(num_outputs, device=device))
        if {"roc_auc", "average_precision"} & set(asked):
            self._tallies.append(Rankings(num_outputs, task=task, device=device))

    @classmethod
    def of(cls, objective: Objective, *, device: torch.device) -> "Scoreboard":
        """For the metrics of ``objective``."""
        return cls(objective.metrics, task=objective.task, num_outputs=objective.num_outputs, device=device)

    def add(self, outputs: Tensor, *, y: Tensor, split: Tensor) -> None:
        """Take in predictions [n, C] of rows with labels ``y`` [n] or [n, T] and parts ``split`` [n]."""
        for tally in self._tallies:
            tally.add(outputs.detach(), y=y, split=split)

    def scores(self, axis: Axis) -> dict[str, float]:
        """The asked ``{split}_{metric}``; a part without labels is left out. The same on all ranks. Collective."""
        found: dict[str, float] = {}
        for tally in self._tallies:
            found |= tally.scores(axis)
        return {name: score for name, score in found.items() if name in self._asked}


class ClassCounts:
    """Correct, predicted and actual rows of every class: int64 [3 parts, 3, C]."""

    def __init__(self, num_classes: int, *, device: torch.device) -> None:
        self._counts = torch.zeros(len(SPLIT_NAMES), 3, num_classes, dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, *, y: Tensor, split: Tensor) -> None:
        """See ``Tally``."""
        predicted, num_classes = outputs.argmax(dim=1), self._counts.shape[2]
        for part, counts in enumerate(self._counts):
            chosen = (split == part) & is_known(y)
            hit = chosen & (predicted == y)
            for count, rows in zip(counts, (y[hit], predicted[chosen], y[chosen]), strict=True):
                count += rows.bincount(minlength=num_classes)

    def scores(self, axis: Axis) -> dict[str, float]:
        """Accuracy; macro F1 over the classes that occur or are predicted, as scikit-learn takes them."""
        axis.sum_in_place(self._counts)
        found: dict[str, float] = {}
        for name, (correct, predicted, actual) in zip(SPLIT_NAMES, self._counts.tolist(), strict=True):
            if not sum(actual):
                continue
            f1 = [2 * c / (p + a) for c, p, a in zip(correct, predicted, actual, strict=True) if p + a]
            found |= {f"{name}_accuracy": sum(correct) / sum(actual), f"{name}_macro_f1": sum(f1) / len(f1)}
        return found


class ErrorSums:
    """Number, absolute sum and square sum of the errors of every target: float64 [3 parts, 3, T]."""

    def __init__(self, num_targets: int, *, device: torch.device) -> None:
        self._sums = torch.zeros(len(SPLIT_NAMES), 3, num_targets, dtype=torch.float64, device=device)

    def add(self, outputs: Tensor, *, y: Tensor, split: Tensor) -> None:
        """See ``Tally``."""
        for part, sums in enumerate(self._sums):
            chosen = (split == part).unsqueeze(1) & is_known(y)
            errors = torch.where(chosen, outputs.double() - y, 0)
            sums += torch.stack((chosen.sum(0), errors.abs().sum(0), errors.square().sum(0)))

    def scores(self, axis: Axis) -> dict[str, float]:
        """Both errors, averaged over the targets that have labels."""
        axis.sum_in_place(self._sums)
        found: dict[str, float] = {}
        for name, (number, absolute, square) in zip(SPLIT_NAMES, self._sums, strict=True):
            has = number > 0
            if has.any():
                found[f"{name}_mae"] = float((absolute[has] / number[has]).mean())
                found[f"{name}_rmse"] = float((square[has] / number[has]).sqrt().mean())
        return found


class Rankings:
    """This shard's scores; ranked among those of all shards at the end.

    Two classes are one question (the difference of their outputs); more are one each against the rest, by their share
    of the softmax; yes-or-no labels are one each, by their output.
    """

    def __init__(self, num_outputs: int, *, task: Task, device: torch.device) -> None:
        self._num_outputs, self._is_multilabel = num_outputs, task == "multilabel"
        num_questions = 1 if self._is_binary else num_outputs
        none = torch.zeros(0, num_questions, dtype=torch.float64, device=device)
        self._rows = [(none, none.to(torch.int8), none.sum(1).to(torch.int8))]  # what a shard without rows sends

    @property
    def _is_binary(self) -> bool:
        return self._num_outputs == 2 and not self._is_multilabel

    def add(self, outputs: Tensor, *, y: Tensor, split: Tensor) -> None:
        """See ``Tally``."""
        if self._is_multilabel:
            scores, truth = outputs, torch.where(is_known(y), y, -1).to(torch.int8)
        elif self._is_binary:
            scores, truth = (outputs[:, 1] - outputs[:, 0]).unsqueeze(1), y.to(torch.int8).unsqueeze(1)
        else:
            one_hot = functional.one_hot(y.clamp(min=0), self._num_outputs).to(torch.int8)
            scores, truth = outputs.softmax(dim=1), torch.where(is_known(y).unsqueeze(1), one_hot, -1)
        self._rows.append((scores.double(), truth, split))

    def scores(self, axis: Axis) -> dict[str, float]:
        """ROC-AUC and average precision, each averaged over the questions that have both answers."""
        scores, truth, split = (torch.cat(parts) for parts in zip(*self._rows, strict=True))
        found: dict[str, float] = {}
        for part, name in enumerate(SPLIT_NAMES):
            rows = split == part
            auc, precision = rank_scores(scores[rows], truth=truth[rows], axis=axis)
            if len(auc):
                found |= {f"{name}_roc_auc": float(auc.mean()), f"{name}_average_precision": float(precision.mean())}
        return found


def rank_scores(scores: Tensor, *, truth: Tensor, axis: Axis) -> tuple[Tensor, Tensor]:
    """(ROC-AUC, average precision), float64, of every question that has both answers over all shards. Collective.

    ``scores`` float64 [n, Q], ``truth`` int8 [n, Q]: 1 yes, 0 no, -1 not known. ROC-AUC is the share of pairs (yes, no)
    in the right order, ties counting half (Hanley & McNeil, Radiology 1982); average precision is the mean over the
    "yes" of the precision among all that score at least as high. NaN where a score is.
    """
    num_questions = scores.shape[1]
    answers = torch.stack([(truth == answer).sum(0) for answer in (1, 0)])  # int64 [2, Q]
    sick = scores.isnan().any(0).long()
    own = [scores[truth[:, question] == 1, question] for question in range(num_questions)]
    above = [torch.zeros(3, len(yes), dtype=torch.int64, device=scores.device) for yes in own]
    for other_scores, other_truth in _visiting_shards(scores, truth, axis=axis):
        for question, yes in enumerate(own):
            column = other_scores[:, question].contiguous()
            for row, answer in enumerate((1, 0)):
                ranked = column[other_truth[:, question] == answer].sort().values
                above[question][row] += len(ranked) - torch.searchsorted(ranked, yes)
            above[question][2] += len(ranked) - torch.searchsorted(ranked, yes, right=True)
    # twice the pairs (yes, no) in the wrong order, ties counting half: all "no" not below, and all above
    wrong = torch.stack([no_below[1].sum() + no_below[2].sum() for no_below in above])
    precision = torch.stack([(counts[0].double() / (counts[0] + counts[1])).sum() for counts in above])
    axis.sum_in_place(answers, sick, wrong, precision)
    both = (answers > 0).all(0)
    yes, no = answers[:, both].double()
    healthy = torch.where(sick[both] > 0, torch.nan, 1.0)
    return (1 - wrong[both] / (2 * yes * no)) * healthy, precision[both] / yes * healthy


def _visiting_shards(scores: Tensor, truth: Tensor, *, axis: Axis) -> Iterator[tuple[Tensor, Tensor]]:
    """Scores and truth of every shard in turn; one of them is here at a time."""
    sizes = torch.zeros(axis.size, dtype=torch.int64, device=scores.device)
    sizes[axis.index] = len(scores)
    axis.sum_in_place(sizes)
    for source, size in enumerate(sizes.tolist()):
        visitor = (scores, truth)
        if source != axis.index:
            visitor = tuple(shard.new_empty(size, shard.shape[1]) for shard in visitor)
        if size:
            for shard in visitor:
                axis.broadcast_in_place(shard, source=source)
            yield visitor
