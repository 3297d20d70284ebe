"""The use of a trained sampled GNN: exact, layer by layer over the whole graph, shared by replicas (``evaluation``)."""

import torch
from torch import nn

from workers.comm.axis import Axis, open_axis
from workers.data.datasets import load_dataset
from workers.data.graph import NO_LABEL, NO_SPLIT, GraphDataset
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.feature_shares import open_features
from workers.mqgnn.goals import answers_of, link_scorer
from workers.mqgnn.model_runs import runs_of
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.mqgnn.table_exchange import with_learned_features
from workers.mqgnn.temporal_evaluation import NodeEvaluator
from workers.mqgnn.trained_data import trained_graph
from workers.training.export import load_exported
from workers.training.finish import report_use
from workers.training.memory import PeakMemory
from workers.training.metrics import Scoreboard
from workers.training.objective import resolve_objective
from workers.training.predictions import Predictions
from workers.training.run import RankRun


def predict(run: RankRun) -> dict[str, float]:
    """Do what ``run.spec.task`` says with the model of ``run.model_from``; returns the scores. Collective.

    Raises ``DatasetInvalidError`` and ``CheckpointInvalidError``.
    """
    assert run.model_from is not None, "a run that uses a model is given its export"
    memory = PeakMemory(run.device)
    memory.start()
    dataset = load_dataset(run.spec.dataset, paths=run.data)
    graph = graph_to_sample(trained_graph(dataset), run.spec.model)
    dtype = getattr(torch, run.spec.training.dtype)
    axis = open_axis((tuple(range(run.world_size)),), rank=run.rank)
    try:
        model = load_exported(run.model_from).to(run.device, dtype)
        objective = resolve_objective(run.spec.training, dataset)
        predictions = Predictions(objective)
        score = _score_rows if dataset.links is None else _score_links
        with open_features(graph, plan=run.plan, axis=axis, device=run.device, address=run.address) as features:
            runs = runs_of(
                model,
                run.spec.model,
                features.graph,
                dataset=dataset,
                rank=run.rank,
                seed=run.spec.training.seed,
                device=run.device,
                dtype=dtype,
            )
            evaluator = runs.evaluator(with_learned_features(features.graph, model), axis=axis)
            scores = score(run, model, dataset=dataset, evaluator=evaluator, predictions=predictions, axis=axis)
        return report_use(run, scores=scores, predictions=predictions, axis=axis, memory=memory)
    finally:
        axis.close()


def _score_rows(
    run: RankRun,
    model: nn.Module,
    *,
    dataset: GraphDataset,
    evaluator: NodeEvaluator,
    predictions: Predictions,
    axis: Axis,
) -> dict[str, float]:
    """Scores of nodes or graphs, which are what is predicted."""
    board = Scoreboard.of(predictions.objective, device=run.device)
    for found in answers_of(model, dataset, evaluator=evaluator, axis=axis, pooling=run.spec.model.pooling):
        board.add(found.outputs, y=found.y, split=found.split)
        if run.spec.task == "predict":
            predictions.add(found.outputs, ids=found.ids, y=found.y, split=found.split)
    return board.scores(axis)


def _score_links(
    run: RankRun,
    model: nn.Module,
    *,
    dataset: GraphDataset,
    evaluator: NodeEvaluator,
    predictions: Predictions,
    axis: Axis,
) -> dict[str, float]:
    """Scores of links; what is predicted are embeddings of nodes, which lie in no part."""
    assert isinstance(evaluator, Evaluator), "links have no times"
    objective = predictions.objective
    embeddings = evaluator.all_outputs(model, width=objective.num_outputs)
    if run.spec.task == "predict":
        ids = torch.arange(evaluator.own.start, evaluator.own.stop, device=run.device)
        nothing = torch.full_like(ids, NO_LABEL)
        predictions.add(embeddings[evaluator.own], ids=ids, y=nothing, split=torch.full_like(ids, NO_SPLIT))
    return link_scorer(dataset, objective=objective, axis=axis)(embeddings)
