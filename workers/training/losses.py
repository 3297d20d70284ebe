"""Losses by name, as sums over rows: whoever divides by the targets of the global batch gets the same on any ranks.

Labels are int64 [n] (classes, ``NO_LABEL`` where not known) or float [n, T] (yes-or-no labels or numbers, NaN where not
known). A row's loss is the mean over its T outputs, what is not known counting zero; class weights multiply it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from workers.data.graph import NO_LABEL
from workers.training.objective import Objective

# (outputs [n, C or T], labels) -> scalar, differentiable; no rows give zero
Loss = Callable[[Tensor, Tensor], Tensor]

_OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
    "l1": functional.l1_loss,
    "mse": functional.mse_loss,
    "huber": functional.huber_loss,
}


def build_loss(objective: Objective) -> Loss:
    """The loss of ``objective``; its class weights multiply the rows of their class, or the "yes" of their label."""
    weights = None
    if objective.class_weights is not None:
        weights = torch.tensor(objective.class_weights, dtype=torch.float64)
    if objective.task == "links":
        return _of_links
    if objective.loss == "cross_entropy":
        return partial(_cross_entropy, class_weights=weights)
    return partial(_of_numbers, loss=_OF_NUMBERS[objective.loss], class_weights=weights)


def links_wanted(scores: Tensor) -> Tensor:
    """What ``scores`` [n, 1 + false ones] of links stand for: 1 for the first of each row, which is true, else 0."""
    wanted = torch.zeros_like(scores)
    wanted[:, :1] = 1
    return wanted


def _of_links(scores: Tensor, _: Tensor) -> Tensor:
    """Binary cross-entropy of each link and its false ones: the mean over them, summed."""
    entries = functional.binary_cross_entropy_with_logits(scores, links_wanted(scores), reduction="sum")
    return entries / scores.shape[1]


def is_known(y: Tensor) -> Tensor:
    """Bool, the shape of ``y``: True where there is a label."""
    return ~y.isnan() if y.is_floating_point() else y != NO_LABEL


def _cross_entropy(outputs: Tensor, y: Tensor, *, class_weights: Tensor | None) -> Tensor:
    weight = None if class_weights is None else class_weights.to(outputs)
    return functional.cross_entropy(outputs, y, weight=weight, ignore_index=NO_LABEL, reduction="sum")


def _of_numbers(outputs: Tensor, y: Tensor, *, loss: Callable[..., Tensor], class_weights: Tensor | None) -> Tensor:
    if not y.is_floating_point():  # one class against the rest
        known = is_known(y).unsqueeze(1)
        wanted = functional.one_hot(y.clamp(min=0), outputs.shape[1]).to(outputs)
    else:
        known = is_known(y)
        wanted = torch.where(known, y, 0).to(outputs)
    entries = loss(outputs, wanted, reduction="none") * known
    if class_weights is not None:
        entries = entries * torch.where(wanted > 0, class_weights.to(outputs), 1)
    return entries.sum() / outputs.shape[1]
