"""How a user's module runs on a graph, found out on one mini-batch before anything is trained.

Where rows are learned for each node (its ``node_table``), they lie beside the features of the mini-batch, too, and
nothing is read in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import MessagePassing

from workers.data.graph import TRAIN, Graph
from workers.errors import ModelInvalidError
from workers.models.node_table import table_of
from workers.models.sampled import Reading
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.own.forms import Form, choose_form, run_whole
from workers.mqgnn.own.inference import runs_by_calls
from workers.mqgnn.preparation import build_stages, may_read_in_place
from workers.mqgnn.seed_order import BatchTask, SeedOrder

_NUM_JUDGED = 64  # seeds on which the form is judged: some thousand nodes at the usual fanouts
_NUM_ODD = 8  # of each kind of odd nodes among them


@dataclass(frozen=True)
class Ways:
    """``form`` on mini-batches; ``by_calls``: over all nodes one convolution after the other, not all at once."""

    form: Form
    by_calls: bool

    @property
    def reading(self) -> Reading:
        """How the first convolution meets the features."""
        return "edges" if self.form == "in place" else "gathered"


class Judge:
    """Looks at modules on one mini-batch of ``graph``; ``sampling`` says how it is sampled (``build_stages``)."""

    def __init__(
        self,
        graph: Graph,
        *,
        as_matrix: bool,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        sampling: Mapping[str, Any],
    ) -> None:
        """``as_matrix``: the module takes ``adj_t``, a sparse matrix, in the place of ``edge_index``."""
        self._graph, self._as_matrix, self._seed = graph, as_matrix, seed
        self._device, self._dtype, self._sampling = device, dtype, sampling

    @torch.no_grad()
    def outputs_width(self, model: nn.Module) -> int:
        """Run ``model`` as it is written: what lazy modules make is made. Returns the width of its outputs.

        Raises ``ModelInvalidError`` where they are not one row for each node.
        """
        batch = _with_learned_rows(model, self._batch("gathered"))
        return run_whole(model.eval(), batch, as_matrix=self._as_matrix).shape[1]

    def ways(self, model: nn.Module) -> Ways:
        """The fastest that are right for ``model``. Deterministic in its weights."""
        batch, in_place = _with_learned_rows(model, self._batch("gathered")), None
        if table_of(model) is None and may_read_in_place(self._graph, device=self._device, dtype=self._dtype):
            in_place = self._batch("edges")
        return Ways(
            form=choose_form(model, batch, in_place=in_place, as_matrix=self._as_matrix),
            by_calls=runs_by_calls(model, batch, as_matrix=self._as_matrix),
        )

    def _batch(self, reading: Reading) -> MiniBatch:
        seeds = _judged_seeds(self._graph)
        order = SeedOrder(seeds, len(seeds), self._seed)
        item: Any = BatchTask(epoch=1, batch=0)
        where = {"device": self._device, "dtype": self._dtype}
        for stage in build_stages(self._graph, order=order, rank=0, reading=reading, **where, **self._sampling):
            item = stage.make_worker()(item)
        item.wait()
        return item


def check_module(model: nn.Module) -> None:
    """Refuse what cannot be trained on mini-batches. Raises ``ModelInvalidError``."""
    for name, module in model.named_modules():
        what = f"{name or 'the module'} ({type(module).__name__})"
        if getattr(module, "cached", False) is True:
            raise ModelInvalidError(
                f"{what} has cached=True: it would keep the edges of the first mini-batch and use them for all others,"
                " which have other nodes; leave it out"
            )
        if isinstance(module, MessagePassing) and module.flow != "source_to_target":
            raise ModelInvalidError(
                f"{what} has flow {module.flow!r}, but the sources of a node's edges are sampled: turn data.edge_index"
                " round (flip(0)) and leave flow out"
            )


def _with_learned_rows(model: nn.Module, batch: MiniBatch) -> MiniBatch:
    table = table_of(model)
    return batch if table is None else replace(batch, x=table.beside(batch.x, batch.node_ids).detach())


def _judged_seeds(graph: Graph) -> np.ndarray:
    """Some nodes, those that train first, and some that kernels may treat otherwise: alone, or their own source."""
    usual = np.argsort(graph.split != TRAIN, kind="stable")[:_NUM_JUDGED]
    degrees = np.diff(graph.indptr)
    targets = np.repeat(np.arange(graph.num_nodes), degrees)
    looped = np.unique(targets[graph.indices == targets])
    looped = looped[np.argsort(degrees[looped], kind="stable")]  # of few neighbours, so that the sample holds the loop
    odd = (np.flatnonzero(degrees == 0)[:_NUM_ODD], looped[:_NUM_ODD])
    return np.unique(np.concatenate((usual, *odd)))
