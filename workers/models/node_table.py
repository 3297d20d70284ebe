"""Numbers that are learned for each node, read beside its features: for nodes without features, or with too few.

The table is a buffer and no parameter: a step reads, and changes, the rows of its own nodes alone, so neither an
optimiser nor gradients of the whole table are wanted (``workers.mqgnn.table_exchange`` does the learning). As a buffer
it goes with the model into checkpoints and exports.
"""

from typing import Any

import torch
from torch import Tensor, nn

from workers.errors import ModelInvalidError


class NodeTable(nn.Module):
    """``weight`` [N, size]; empty until ``fill``, or until weights are loaded."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("weight", torch.empty(0, size))
        self._read: tuple[Tensor, Tensor] | None = None

    def fill(self, num_nodes: int) -> None:
        """A fresh row for each node, of length 1 in the mean (drawn from torch's global generator)."""
        self.weight = torch.randn(num_nodes, self.size, dtype=self.weight.dtype, device=self.weight.device)
        self.weight *= self.size**-0.5

    def beside(self, x: Tensor, node_ids: Tensor) -> Tensor:
        """``x`` [n, F] of the nodes ``node_ids`` [n], each once, and their rows: [n, F + size].

        In training the rows that were read are kept for ``take_gradient``.
        """
        rows = self.weight[node_ids.long()]
        if self.training and torch.is_grad_enabled():
            self._read = (node_ids.long(), rows.requires_grad_())
        return torch.cat((x, rows), dim=1)

    def take_gradient(self) -> tuple[Tensor, Tensor]:
        """(nodes [n], gradients of their rows [n, size]) of what was read since the last call; both may be empty."""
        read, self._read = self._read, None
        if read is None or read[1].grad is None:
            return torch.empty(0, dtype=torch.int64, device=self.weight.device), self.weight[:0]
        return read[0], read[1].grad

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        if (found := state_dict.get(f"{prefix}weight")) is not None:
            self.weight = self.weight.new_empty(found.shape)  # as many nodes as there were
        super()._load_from_state_dict(state_dict, prefix, *others)


def table_of(model: nn.Module) -> NodeTable | None:
    """The table of ``model``, where it has one."""
    found = getattr(model, "node_table", None)
    return found if isinstance(found, NodeTable) else None


def give_table(model: nn.Module, size: int) -> None:
    """A table of so many numbers for a user's module, empty. Raises ``ModelInvalidError`` where its name is taken."""
    if hasattr(model, "node_table"):
        raise ModelInvalidError(
            "the module has a node_table of its own, where rows that are learned for each node would lie; rename it, or"
            " leave node_embedding_size out"
        )
    model.node_table = NodeTable(size)
