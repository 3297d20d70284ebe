"""What replicas of a user's module must hold alike, beside the parameters that steps keep equal."""

from torch import nn

from workers.comm.axis import Axis
from workers.comm.reduce import copy_from_first
from workers.models.node_table import table_of


def equalize_statistics(model: nn.Module, *, axis: Axis) -> None:
    """All replicas get what the norms of the first have seen, which is each one's own until then. Collective."""
    table = table_of(model)
    learned = set() if table is None else set(table.buffers())  # in steps of all
    copy_from_first((buffer for buffer in model.buffers() if buffer not in learned), axis=axis)
