"""Plays a rank's list of actions for one optimiser step. What runs, and in which order, is the plan's alone."""

from collections.abc import Callable, Sequence

from torch import Tensor

from planner.plan import Action


def play(actions: Sequence[Action], *, forward: Callable[[int], Tensor]) -> Tensor:
    """Run ``actions`` in order; F calls ``forward(micro_batch)`` for its loss, B runs that loss's backward.

    Between F and B a micro-batch's activations stay alive, and no longer. Returns the sum of the losses, float64.
    """
    losses: dict[int, Tensor] = {}
    total: Tensor | None = None
    for action in actions:
        if action.kind == "F":
            loss = forward(action.micro_batch)
            losses[action.micro_batch] = loss
            total = loss.detach().double() if total is None else total + loss.detach()
        else:
            losses.pop(action.micro_batch).backward()
    assert total is not None, "a step runs at least one micro-batch"
    return total
