"""From the plan's rule to the exchange that plays it, with the process groups that it needs, opened and closed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from planner.sync import SyncRule
from workers.comm.axis import Axis, open_axis
from workers.mqgnn.exchange import AllReduce, Exchange
from workers.mqgnn.local_sgd import LocalSGD
from workers.mqgnn.racom.exchange import Racom


@contextmanager
def open_exchange(
    rule: SyncRule, model: nn.Module, *, optimizer: torch.optim.Optimizer, axis: Axis
) -> Iterator[Exchange]:
    """The exchange of ``rule`` between the replicas on ``axis``; stopped at the end. Collective.

    One replica, and a rule that lets nobody lead or drift, sums gradients in every step (``AllReduce``).
    """
    if axis.size == 1 or rule.every_step:
        yield AllReduce(model, axis=axis)
        return
    if rule.name == "local_sgd":
        yield LocalSGD(model, optimizer=optimizer, axis=axis, period=rule.first_period)
        return
    means, pushes = (open_axis((axis.ranks,), rank=axis.ranks[axis.index]) for _ in range(2))
    try:
        exchange = Racom(model, optimizer=optimizer, rule=rule, means=means, pushes=pushes)
        try:
            yield exchange
        finally:
            exchange.close()
    finally:
        means.close()
        pushes.close()
