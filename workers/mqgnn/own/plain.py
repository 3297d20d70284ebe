"""A graph of one kind of nodes and edges, as the Trainer meets it: how a module runs on it, and all that follows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from workers.comm.axis import Axis
from workers.data.graph import TRAIN, Graph
from workers.data.links import hide_links
from workers.errors import ModelInvalidError
from workers.mqgnn.engine import Forward
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.goals import draws_of, forward_of
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.own.forms import Form, OwnForward, choose_form, run_whole
from workers.mqgnn.own.graph import OwnGraph, OwnSettings
from workers.mqgnn.own.inference import OwnEvaluator, runs_by_calls
from workers.mqgnn.own.pyg_data import dataset_of, takes_matrix
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.stage import Stage

_NUM_JUDGED = 64  # seeds on which the form is judged: some thousand nodes at the usual fanouts
_NUM_ODD = 8  # of each kind of odd nodes among them
_SAMPLERS = ("uniform", "labor")


class PlainGraph(OwnGraph):
    """PyG's ``Data``. Before ``judge``, a module runs whole."""

    def __init__(self, data: Any, settings: OwnSettings) -> None:
        """Raises ``DatasetInvalidError`` and ``ModelInvalidError``."""
        if settings.sampler not in _SAMPLERS:
            raise ModelInvalidError(
                f"a module of your own takes the samplers {', '.join(_SAMPLERS)}; found {settings.sampler!r}"
            )
        self.dataset, self._as_matrix = dataset_of(data, task=settings.task), takes_matrix(data)
        if settings.links is not None:
            self.dataset = hide_links(self.dataset, settings.links)
        self.labels = torch.empty(0) if data.y is None else data.y
        self._device, self._dtype, self._seed = settings.device, settings.dtype, settings.seed
        self._sampling: dict[str, Any] = {
            "fanouts": settings.fanouts,
            "sampler": settings.sampler,
            "replace": settings.replace,
            "num_sampling_workers": settings.num_sampling_workers,
            "device": settings.device,
            "dtype": settings.dtype,
        }
        self.form: Form = "whole"
        self.by_calls = False

    @property
    def _graph(self) -> Graph:
        return self.dataset.graphs[0]

    @torch.no_grad()
    def outputs_width(self, model: nn.Module) -> int:
        """See ``OwnGraph``."""
        return run_whole(model.eval(), self._judged_batch("gathered"), as_matrix=self._as_matrix).shape[1]

    def judge(self, model: nn.Module) -> None:
        """See ``OwnGraph``."""
        batch, in_place = self._judged_batch("gathered"), None
        if self._device.type == "cpu" and self._dtype == torch.float32:
            in_place = self._judged_batch("edges")
        self.form = choose_form(model, batch, in_place=in_place, as_matrix=self._as_matrix)
        self.by_calls = runs_by_calls(model, batch, as_matrix=self._as_matrix)

    def stages(self, order: SeedOrder, *, rank: int) -> Sequence[Stage]:
        """See ``OwnGraph``."""
        reading = "edges" if self.form == "in place" else "gathered"
        draws = draws_of(self.dataset, self._graph)
        return build_stages(self._graph, order=order, rank=rank, reading=reading, draws=draws, **self._sampling)

    def forward(self, *, rank: int) -> Forward:
        """See ``OwnGraph``."""
        return forward_of(self.dataset, forward=OwnForward(self.form, rank=rank, as_matrix=self._as_matrix))

    def evaluator(self, axis: Axis) -> Evaluator:
        """See ``OwnGraph``."""
        return OwnEvaluator(
            self._graph,
            by_calls=self.by_calls,
            as_matrix=self._as_matrix,
            axis=axis,
            device=self._device,
            dtype=self._dtype,
        )

    def _judged_batch(self, reading: str) -> MiniBatch:
        seeds = _judged_seeds(self._graph)
        order = SeedOrder(seeds, len(seeds), self._seed)
        item: Any = BatchTask(epoch=1, batch=0)
        for stage in build_stages(self._graph, order=order, rank=0, reading=reading, **self._sampling):
            item = stage.make_worker()(item)
        item.wait()
        return item


def _judged_seeds(graph: Graph) -> np.ndarray:
    """Some nodes, those that train first, and some that kernels may treat otherwise: alone, or their own source."""
    usual = np.argsort(graph.split != TRAIN, kind="stable")[:_NUM_JUDGED]
    degrees = np.diff(graph.indptr)
    targets = np.repeat(np.arange(graph.num_nodes), degrees)
    looped = np.unique(targets[graph.indices == targets])
    looped = looped[np.argsort(degrees[looped], kind="stable")]  # of few neighbours, so that the sample holds the loop
    odd = (np.flatnonzero(degrees == 0)[:_NUM_ODD], looped[:_NUM_ODD])
    return np.unique(np.concatenate((usual, *odd)))
