"""A graph of one kind of nodes and edges, as the Trainer meets it: how a module runs on it, and all that follows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from workers.comm.axis import Axis
from workers.data.graph import Graph
from workers.data.links import hide_links
from workers.errors import ModelInvalidError
from workers.mqgnn.engine import Forward
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.goals import draws_of, forward_of
from workers.mqgnn.own.forms import Form, OwnForward
from workers.mqgnn.own.graph import OwnGraph, OwnSettings
from workers.mqgnn.own.inference import OwnEvaluator
from workers.mqgnn.own.judging import Judge, Ways
from workers.mqgnn.own.pyg_data import dataset_of, takes_matrix
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.stage import Stage
from workers.mqgnn.table_exchange import with_learned_features

_SAMPLERS = ("uniform", "labor")


class PlainGraph(OwnGraph):
    """PyG's ``Data``. Before ``judge``, a module runs whole."""

    def __init__(self, data: Any, settings: OwnSettings) -> None:
        """Raises ``DatasetInvalidError`` and ``ModelInvalidError``."""
        if settings.sampler not in _SAMPLERS:
            raise ModelInvalidError(
                f"a module of your own takes the samplers {', '.join(_SAMPLERS)}; found {settings.sampler!r}"
            )
        needs_features = not settings.node_embedding_size
        self.dataset = dataset_of(data, task=settings.task, needs_features=needs_features)
        self._as_matrix = takes_matrix(data)
        if settings.links is not None:
            self.dataset = hide_links(self.dataset, settings.links)
        self.labels = torch.empty(0) if data.y is None else data.y
        self._device, self._dtype = settings.device, settings.dtype
        self._sampling: dict[str, Any] = {
            "fanouts": settings.fanouts,
            "sampler": settings.sampler,
            "replace": settings.replace,
            "num_sampling_workers": settings.num_sampling_workers,
        }
        self._judge = Judge(
            self._graph,
            as_matrix=self._as_matrix,
            seed=settings.seed,
            device=settings.device,
            dtype=settings.dtype,
            sampling=self._sampling,
        )
        self._ways, self._num_outputs = Ways(form="whole", by_calls=False), 1

    @property
    def form(self) -> Form:
        """See ``OwnGraph``."""
        return self._ways.form

    @property
    def by_calls(self) -> bool:
        """See ``OwnGraph``."""
        return self._ways.by_calls

    @property
    def num_rows(self) -> int:
        """See ``OwnGraph``."""
        return self._graph.num_nodes

    @property
    def _graph(self) -> Graph:
        return self.dataset.graphs[0]

    def outputs_width(self, model: nn.Module) -> int:
        """See ``OwnGraph``."""
        self._num_outputs = self._judge.outputs_width(model)
        return self._num_outputs

    def judge(self, model: nn.Module) -> None:
        """See ``OwnGraph``."""
        self._ways = self._judge.ways(model)

    def stages(self, order: SeedOrder, *, rank: int) -> Sequence[Stage]:
        """See ``OwnGraph``."""
        return build_stages(
            self._graph,
            order=order,
            rank=rank,
            device=self._device,
            dtype=self._dtype,
            reading=self._ways.reading,
            draws=draws_of(self.dataset, self._graph),
            **self._sampling,
        )

    def forward(self, *, rank: int) -> Forward:
        """See ``OwnGraph``."""
        forward = OwnForward(self.form, rank=rank, num_outputs=self._num_outputs, as_matrix=self._as_matrix)
        return forward_of(self.dataset, forward=forward)

    def evaluator(self, model: nn.Module, *, axis: Axis) -> Evaluator:
        """See ``OwnGraph``."""
        return OwnEvaluator(
            with_learned_features(self._graph, model),
            by_calls=self.by_calls,
            as_matrix=self._as_matrix,
            axis=axis,
            device=self._device,
            dtype=self._dtype,
        )
