"""How the model of a job runs on mini-batches and over all nodes: layer by layer, or as a user's own module allows.

Training, the use of a trained model, and the probe all ask ``runs_of``, so what is planned for is what runs.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from workers.comm.axis import Axis
from workers.data.graph import Graph, GraphDataset
from workers.errors import ModelInvalidError
from workers.model_specs.custom import CustomGNNSpec
from workers.model_specs.sampled import SampledFields
from workers.models.sampled import Reading
from workers.mqgnn.engine import Forward, forward_batch
from workers.mqgnn.goals import sampling_of
from workers.mqgnn.own.forms import OwnForward
from workers.mqgnn.own.inference import OwnEvaluator
from workers.mqgnn.own.judging import Judge, Ways, check_module
from workers.mqgnn.preparation import choose_reading
from workers.mqgnn.temporal_evaluation import NodeEvaluator, build_evaluator


class ModelRuns(Protocol):
    """``forward`` gives the rows of a mini-batch's seeds, whose features come by ``reading``."""

    reading: Reading
    forward: Forward

    def evaluator(self, graph: Graph, *, axis: Axis) -> NodeEvaluator:
        """Scores and outputs of all nodes of ``graph`` (with what is learned for them), shared on ``axis``."""


@dataclass(frozen=True)
class _ByLayers(ModelRuns):
    spec: SampledFields
    reading: Reading
    device: torch.device
    dtype: torch.dtype
    forward: Forward = forward_batch

    def evaluator(self, graph: Graph, *, axis: Axis) -> NodeEvaluator:
        return build_evaluator(self.spec, graph, axis=axis, device=self.device, dtype=self.dtype)


@dataclass(frozen=True)
class _AsFound(ModelRuns):
    ways: Ways
    as_matrix: bool
    forward: Forward
    device: torch.device
    dtype: torch.dtype

    @property
    def reading(self) -> Reading:
        return self.ways.reading

    def evaluator(self, graph: Graph, *, axis: Axis) -> NodeEvaluator:
        return OwnEvaluator(
            graph,
            by_calls=self.ways.by_calls,
            as_matrix=self.as_matrix,
            axis=axis,
            device=self.device,
            dtype=self.dtype,
        )


def runs_of(
    model: nn.Module,
    spec: SampledFields,
    graph: Graph,
    *,
    dataset: GraphDataset,
    rank: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype,
) -> ModelRuns:
    """How ``model`` of ``spec`` runs on ``graph``, all of ``dataset`` as it is sampled, without rows that are learned.

    A user's own module is tried on one mini-batch. Raises ``ModelInvalidError`` where it fails there, or where its
    outputs are not those that ``dataset`` asks for.
    """
    where = {"device": device, "dtype": dtype}
    if not isinstance(spec, CustomGNNSpec):
        return _ByLayers(spec, reading=choose_reading(model, graph, **where), **where)
    check_module(model)
    as_matrix = spec.takes == "adj_t"
    judge = Judge(graph, as_matrix=as_matrix, seed=seed, sampling=sampling_of(spec, dataset), **where)
    try:
        num_outputs, ways = judge.outputs_width(model), judge.ways(model)
    except ModelInvalidError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise ModelInvalidError(
            f"{spec.module} was called (x, {spec.takes}) on a first mini-batch and failed: {type(error).__name__}:"
            f" {error}"
        ) from error
    if num_outputs != dataset.num_classes:
        raise ModelInvalidError(
            f"{spec.module} gives {num_outputs} numbers for each node; {dataset.name} asks for {dataset.num_classes}:"
            " build it with num_classes, which it is told"
        )
    forward = OwnForward(ways.form, rank=rank, num_outputs=num_outputs, as_matrix=as_matrix)
    return _AsFound(ways, as_matrix=as_matrix, forward=forward, **where)
