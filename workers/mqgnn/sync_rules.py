"""From the plan's rule to the exchange that plays it, with the process groups that it needs, opened and closed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from planner.sync import SyncRule
from workers.comm.axis import Axis
from workers.mqgnn.exchange import AllReduce, Exchange
from workers.mqgnn.local_sgd import LocalSGD
from workers.mqgnn.racom.exchange import Racom
from workers.mqgnn.racom.membership import Roster


@contextmanager
def open_exchange(
    rule: SyncRule,
    model: nn.Module,
    *,
    optimizer: torch.optim.Optimizer,
    axis: Axis,
    roster: Roster | None = None,
) -> Iterator[Exchange]:
    """The exchange of ``rule`` between the replicas on ``axis``; stopped at the end. Collective.

    One replica, and a rule that lets nobody lead or drift, sums gradients in every step (``AllReduce``). Under a rule
    whose replicas outlive each other, ``roster`` says who they are, by default those on ``axis``.
    """
    if roster is None and rule.outlives_replicas(num_ranks=axis.size):
        roster = Roster(axis.fresh_store(), rank=axis.index, size=axis.size)
    if roster is not None:
        exchange = Racom(model, optimizer=optimizer, rule=rule, roster=roster)
        try:
            yield exchange
        finally:
            exchange.close()
    elif rule.name == "local_sgd" and axis.size > 1:
        yield LocalSGD(model, optimizer=optimizer, axis=axis, period=rule.first_period)
    else:
        yield AllReduce(model, axis=axis)
