"""Context parallelism: the rows of every graph are cut over the ranks, attention asks a ring for the other rows' keys.

Nothing else of the model mixes rows, so nothing else changes. The gradients that a rank ends with are its rows' share;
``workers.comm.reduce.sum_gradients`` completes them.
"""

from torch import nn

from workers.comm.axis import Axis
from workers.comm.ring import RingExchange
from workers.models.graphormer import Attention


def apply_context_parallel(model: nn.Module, *, axis: Axis) -> None:
    """Give every attention of ``model`` the ring over ``axis``; an axis of one rank changes nothing."""
    if axis.size == 1:
        return
    for module in model.modules():
        if isinstance(module, Attention):
            module.exchange = RingExchange(axis)
