"""What replicas of a user's module must hold alike, beside the parameters that steps keep equal."""

from collections.abc import Iterable

from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.models.node_table import table_of


def equalize(tensors: Iterable[Tensor], *, axis: Axis) -> None:
    """All replicas on ``axis`` get what the first one holds. Collective."""
    if axis.size > 1:
        for tensor in tensors:
            whole = tensor.contiguous()
            axis.broadcast_in_place(whole, source=0)
            tensor.copy_(whole)


def equalize_statistics(model: nn.Module, *, axis: Axis) -> None:
    """As ``equalize``, of what norms have seen, which is each replica's own until then. Collective."""
    table = table_of(model)
    learned = set() if table is None else set(table.buffers())  # in steps of all
    equalize((buffer for buffer in model.buffers() if buffer not in learned), axis=axis)
