"""Exact scores where time counts: every node is predicted from the edges that there are at its own time.

Nodes of one time are evaluated together: all that they reach within as many hops as the model has layers, along edges
no later than that time, is a graph by itself, on which the layer-wise ``Evaluator`` runs. Of its nodes those that were
asked for are right (the others lack neighbours, and nobody looks at them). So the work is at most a pass over the edges
for each distinct time, and little where neighbourhoods are small; memory is what ``evaluation`` promises of the
whole graph, and one copy of its edges.

Replicas share the nodes in the order of their times. Limit: with a time of its own for each of many nodes of
overlapping neighbourhoods nothing is shared between them; coarser times (days for seconds) lift that.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import NO_SPLIT, NO_TIME, Features, Graph
from workers.model_specs.sampled import SampledFields
from workers.mqgnn.evaluation import Evaluator, Rows, score_outputs
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.native_kernels import sampler_kernels
from workers.mqgnn.sampling.neighbors import ALL_NEIGHBORS, NeighborSampler
from workers.training.objective import Objective

_ALONE = Axis()


class NodeEvaluator(Protocol):
    """What a run asks of its evaluation."""

    def scores(self, model: nn.Module, *, objective: Objective) -> dict[str, float]:
        """``{split}_{metric}`` over all nodes of the split, the same on all replicas. Collective."""

    def outputs(self, model: nn.Module) -> Iterator[tuple[Rows, Tensor]]:
        """What ``model`` says of this replica's nodes, chunk by chunk. Collective."""


def build_evaluator(
    spec: SampledFields, graph: Graph, *, axis: Axis, device: torch.device, dtype: torch.dtype
) -> NodeEvaluator:
    """The evaluation of ``spec`` on ``graph``, as it is sampled (``sampled_graph``)."""
    if not spec.temporal:
        return Evaluator(graph, axis=axis, device=device, dtype=dtype, has_relations=spec.hetero)
    return TemporalEvaluator(graph, num_hops=spec.num_layers, axis=axis, device=device, dtype=dtype)


class TemporalEvaluator:
    """Scores the predictions for all nodes, each at its own time, together with the other replicas on ``axis``."""

    def __init__(self, graph: Graph, *, num_hops: int, axis: Axis, device: torch.device, dtype: torch.dtype) -> None:
        assert graph.node_times is not None, "held against the data before"
        self._graph, self._axis, self._device, self._dtype = graph, axis, device, dtype
        # a node without a time has always been there, and looks at everything
        self._times = np.where(graph.node_times == NO_TIME, np.iinfo(np.int64).max, graph.node_times)
        self._sampler = NeighborSampler(csc_of(graph), fanouts=(ALL_NEIGHBORS,) * num_hops, kernels=sampler_kernels())

    @torch.inference_mode()
    def scores(self, model: nn.Module, *, objective: Objective) -> dict[str, float]:
        """See ``Evaluator.scores``: over the nodes in some part of the split."""
        outputs = self._outputs(model, np.flatnonzero(self._graph.split != NO_SPLIT))
        return score_outputs(outputs, graph=self._graph, objective=objective, axis=self._axis, device=self._device)

    @torch.inference_mode()
    def outputs(self, model: nn.Module) -> Iterator[tuple[Rows, Tensor]]:
        """See ``Evaluator.outputs``: (numbers of the nodes, [len, C])."""
        yield from self._outputs(model, np.arange(self._graph.num_nodes))

    def _outputs(self, model: nn.Module, nodes: np.ndarray) -> Iterator[tuple[Rows, Tensor]]:
        nodes = nodes[np.argsort(self._times[nodes], kind="stable")]
        low, high = (len(nodes) * place // self._axis.size for place in (self._axis.index, self._axis.index + 1))
        own = nodes[low:high]
        model.eval()
        _, starts = np.unique(self._times[own], return_index=True)
        for group in np.split(own, starts[1:]) if len(own) else ():
            yield from self._at_one_time(model, group)

    def _at_one_time(self, model: nn.Module, nodes: np.ndarray) -> Iterator[tuple[Rows, Tensor]]:
        reached = self._sampler.sample(nodes, key=0, times=self._times[nodes[:1]])
        indptr = np.full(len(reached.node_ids) + 1, len(reached.indices), dtype=np.int64)
        indptr[: len(reached.indptr)] = reached.indptr
        graph = replace(
            self._graph,
            indptr=indptr,
            indices=reached.indices,
            features=_Some(self._graph.features, reached.node_ids),
            edge_times=None,
            edge_weights=None,
        )
        evaluator = Evaluator(graph, axis=_ALONE, device=self._device, dtype=self._dtype)
        for rows, outputs in evaluator.outputs(model):
            asked = slice(rows.start, min(rows.stop, len(nodes)))
            if asked.start >= asked.stop:
                break  # seeds come first
            yield nodes[asked], outputs[: asked.stop - asked.start]


@dataclass(frozen=True, eq=False)
class _Some:
    """The features of some nodes, read where all of them are: as much of ``Features`` as an evaluation asks for."""

    features: Features
    nodes: np.ndarray

    @property
    def num_rows(self) -> int:
        return len(self.nodes)

    @property
    def num_features(self) -> int:
        return self.features.num_features

    def gather(self, rows: np.ndarray) -> np.ndarray:
        return self.features.gather(self.nodes[rows])
