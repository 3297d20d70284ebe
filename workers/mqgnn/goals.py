"""What a run predicts: around what mini-batches are made, how a model answers, how it is scored.

nodes     of one graph, or of a set of graphs side by side; a model's rows are the answers
links     ``link_batches``, ``link_scores``: rows are embeddings
graphs    ``graph_batches``: rows are pooled
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import SPLIT_NAMES, Graph, GraphDataset
from workers.data.union import node_offsets
from workers.model_specs.sampled import SampledFields, SampledPooling
from workers.mqgnn.engine import Forward, forward_batch
from workers.mqgnn.evaluation import Evaluator, Rows
from workers.mqgnn.graph_batches import GraphDraws, all_neighbours, pool, pooled
from workers.mqgnn.link_batches import LinkDraws, scores_of
from workers.mqgnn.link_scores import LinkBoard
from workers.mqgnn.preparation import SeedDraws
from workers.mqgnn.temporal_evaluation import NodeEvaluator
from workers.training.metrics import Scoreboard
from workers.training.objective import Objective


@dataclass(frozen=True, eq=False)
class Answers:
    """Some rows that are predicted: what a model says of them, their numbers, what is known."""

    outputs: Tensor  # [n, C]
    ids: Tensor  # int64 [n]
    y: Tensor
    split: Tensor


def sampling_of(model: SampledFields, dataset: GraphDataset) -> dict[str, Any]:
    """How neighbours are chosen for ``model``, as ``build_stages`` takes it: whole graphs take all of them."""
    return {
        "fanouts": model.fanouts if dataset.level == "node" else all_neighbours(model.fanouts),
        "sampler": model.sampler,
        "replace": model.replace,
        "disjoint": model.disjoint,
        "temporal": model.temporal,
        "backend": model.sampler_backend,
        "types": model.types,
    }


def draws_of(dataset: GraphDataset, graph: Graph) -> SeedDraws | None:
    """What makes seeds in ``graph``, all graphs as one, of links or graphs; None where nodes are predicted."""
    if dataset.links is not None:
        return LinkDraws(graph, dataset.links)
    return None if dataset.level == "node" else GraphDraws(dataset)


def forward_of(dataset: GraphDataset, *, pooling: SampledPooling = "mean", forward: Forward = forward_batch) -> Forward:
    """How a model answers, where ``forward`` gives its rows of the seeds."""
    if dataset.links is not None:
        return scores_of(forward)
    return forward if dataset.level == "node" else pooled(forward, pooling=pooling)


def answers_of(
    model: nn.Module, dataset: GraphDataset, *, evaluator: NodeEvaluator, axis: Axis, pooling: SampledPooling
) -> Iterator[Answers]:
    """What ``model`` says of this replica's share of the nodes, or of the graphs. Collective."""
    y, split = (np.concatenate([getattr(graph, name) for graph in dataset.graphs]) for name in ("y", "split"))
    ids = np.arange(len(y))

    def known(rows: Rows, outputs: Tensor) -> Answers:
        found = (torch.from_numpy(array[rows]).to(outputs.device) for array in (ids, y, split))
        return Answers(outputs, *found)

    if dataset.level == "node":
        for nodes, outputs in evaluator.outputs(model):
            yield known(nodes, outputs)
        return
    assert isinstance(evaluator, Evaluator), "graphs have no times"
    num_graphs, sizes = len(dataset.graphs), np.diff(node_offsets(dataset))
    rows = evaluator.all_outputs(model, width=dataset.num_classes)
    members = torch.from_numpy(np.repeat(np.arange(num_graphs), sizes)).to(rows.device)
    own = slice(num_graphs * axis.index // axis.size, num_graphs * (axis.index + 1) // axis.size)
    yield known(own, pool(rows, members, num_graphs=num_graphs, pooling=pooling)[own])


def scorer_of(
    dataset: GraphDataset,
    *,
    evaluator: NodeEvaluator,
    objective: Objective,
    axis: Axis,
    pooling: SampledPooling = "mean",
) -> Callable[[nn.Module], dict[str, float]]:
    """How a model is scored by all replicas on ``axis``: ``{split}_{metric}`` of the metrics of ``objective``."""
    if dataset.links is None and dataset.level == "node":
        return lambda model: evaluator.scores(model, objective=objective)
    if dataset.links is None:

        def score_graphs(model: nn.Module) -> dict[str, float]:
            (found,) = answers_of(model, dataset, evaluator=evaluator, axis=axis, pooling=pooling)
            board = Scoreboard.of(objective, device=found.outputs.device)
            board.add(found.outputs, y=found.y, split=found.split)
            return board.scores(axis)

        return score_graphs
    assert isinstance(evaluator, Evaluator), "links have no times"
    score = link_scorer(dataset, objective=objective, axis=axis)
    return lambda model: score(evaluator.all_outputs(model, width=objective.num_outputs))


def link_scorer(dataset: GraphDataset, *, objective: Objective, axis: Axis) -> Callable[[Tensor], dict[str, float]]:
    """How the embeddings of all nodes, [N, H] on every replica, are scored as those of a model by ``scorer_of``."""
    board = LinkBoard(dataset, axis=axis)
    asked = {f"{split}_{metric}" for split in SPLIT_NAMES for metric in objective.metrics}
    return lambda embeddings: {name: score for name, score in board.scores(embeddings).items() if name in asked}
