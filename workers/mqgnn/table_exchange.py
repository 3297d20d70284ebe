"""How a table of rows learned for each node goes with a run: sparse gradients between replicas, sparse updates.

A step's gradient has rows for the nodes of its mini-batches alone. Each replica sends its rows, all add them up in
the order of the replicas, and take the same step of Adam on these rows: the moments of others rest (torch's
``SparseAdam``). No decay pulls them, and they do not count for the clipping of the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import Features, Graph
from workers.errors import ExportMismatchError
from workers.models.node_table import NodeTable, table_of
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.seed_order import Shares


class TableExchange(Exchange):
    """``inner`` for the parameters, and a table beside it, summed over ``axis`` in every step."""

    def __init__(self, inner: Exchange, table: NodeTable, *, axis: Axis) -> None:
        self._inner, self._table, self._axis = inner, table, axis
        self._weight = nn.Parameter(table.weight)  # the same memory
        self._adam = torch.optim.SparseAdam([self._weight], lr=1.0)  # that of the others is taken at each step
        self._moments = {name: torch.zeros_like(table.weight) for name in ("exp_avg", "exp_avg_sq")}
        self._adam.state[self._weight] = {"step": 0, **self._moments}
        self._bytes_of_rows = 0

    @property
    def shares(self) -> Shares | None:
        """See ``Exchange``."""
        return self._inner.shares

    @property
    def began_at(self) -> int | None:
        """See ``Exchange``."""
        return self._inner.began_at

    @property
    def bytes_sent(self) -> int:
        """Those of ``inner``, and of the rows."""
        return self._inner.bytes_sent + self._bytes_of_rows

    def zero(self) -> None:
        """See ``Exchange``."""
        self._inner.zero()

    def divisor(self, *, num_seeds: int, num_seeds_all: int) -> int:
        """See ``Exchange``."""
        return self._inner.divisor(num_seeds=num_seeds, num_seeds_all=num_seeds_all)

    def combine(self, loss: Tensor) -> Tensor:
        """See ``Exchange``; then everybody's rows."""
        losses = self._inner.combine(loss)
        nodes, rows = self._everybodys(*self._table.take_gradient())
        self._weight.grad = torch.sparse_coo_tensor(
            nodes.unsqueeze(0), rows, self._weight.shape, is_coalesced=True, check_invariants=False
        )
        return losses

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """See ``Exchange``; then the rows, at the same rate."""
        self._inner.update(optimizer)
        self._adam.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
        self._adam.step()
        self._weight.grad = None

    def meet(self) -> None:
        """See ``Exchange``."""
        self._inner.meet()

    def agree(self) -> None:
        """See ``Exchange``."""
        self._inner.agree()

    def told(self, key: str, make: Callable[[], Any]) -> Any:
        """See ``Exchange``."""
        return self._inner.told(key, make)

    def figures(self) -> dict[str, float]:
        """See ``Exchange``."""
        return self._inner.figures() | {"bytes_sent": float(self.bytes_sent)}

    def state_dict(self) -> dict[str, Any]:
        """See ``Exchange``."""
        return self._inner.state_dict() | {"table_steps": self._adam.state[self._weight]["step"]}

    def tensors(self) -> dict[str, Tensor]:
        """See ``Exchange``."""
        return {f"node_table.weight/{name}": moment for name, moment in self._moments.items()}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """See ``Exchange``."""
        self._inner.load_state_dict(state, step=step)
        self._adam.state[self._weight]["step"] = state["table_steps"]

    def close(self) -> None:
        """See ``Exchange``."""
        self._inner.close()

    def _everybodys(self, nodes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(nodes in order, the sums of their rows over the replicas). Collective."""
        sizes = torch.zeros(self._axis.size, dtype=torch.int64, device=nodes.device)
        sizes[self._axis.index] = len(nodes)
        self._axis.sum_in_place(sizes)
        parts = []
        for source, size in enumerate(sizes.tolist()):
            part = (nodes.contiguous(), rows.contiguous())
            if source != self._axis.index:
                part = (nodes.new_empty(size), rows.new_empty(size, rows.shape[1]))
            elif self._axis.size > 1:
                self._bytes_of_rows += sum(tensor.nbytes for tensor in part)
            if size:
                for tensor in part:
                    self._axis.broadcast_in_place(tensor, source=source)
            parts.append(part)
        distinct, places = torch.cat([part[0] for part in parts]).unique(return_inverse=True)
        sums = rows.new_zeros(len(distinct), rows.shape[1])
        for place, (_, part) in zip(places.split(sizes.tolist()), parts, strict=True):
            sums[place] += part  # a replica has a node once, so nothing is added in an order of its own
        return distinct, sums


@dataclass(frozen=True, eq=False)
class LearnedFeatures(Features):
    """``features`` with the rows of a table beside them, as they are when they are gathered."""

    features: Features
    table: NodeTable

    @property
    def num_rows(self) -> int:
        """See ``Features``."""
        return self.features.num_rows

    @property
    def num_features(self) -> int:
        """See ``Features``."""
        return self.features.num_features + self.table.size

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """[len(rows), F + size], in the wider type of both."""
        nodes = torch.from_numpy(np.asarray(rows, dtype=np.int64)).to(self.table.weight.device)
        return np.concatenate((self.features.gather(rows), self.table.weight[nodes].cpu().numpy()), axis=1)


def with_table(exchange: Exchange, model: nn.Module, *, axis: Axis) -> Exchange:
    """``exchange`` for the table of ``model``, too, where it has one."""
    table = table_of(model)
    return exchange if table is None else TableExchange(exchange, table, axis=axis)


def with_learned_features(graph: Graph, model: nn.Module) -> Graph:
    """``graph`` as ``model`` reads it outside of training. Raises ``ExportMismatchError`` for another graph's table."""
    table = table_of(model)
    if table is None:
        return graph
    if len(table.weight) != graph.num_nodes:
        raise ExportMismatchError(
            f"the model has learned rows for {len(table.weight)} nodes, the graph has {graph.num_nodes}: they"
            " are of use on their own graph alone"
        )
    return replace(graph, features=LearnedFeatures(graph.features, table))
