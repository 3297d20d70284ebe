"""The use of a trained sampled GNN: exact, layer by layer over the whole graph, shared by replicas (``evaluation``)."""

import torch

from workers.comm.axis import open_axis
from workers.data.datasets import load_dataset
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.feature_shares import open_features
from workers.mqgnn.sampling.csc import along
from workers.mqgnn.train import single_graph
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
    graph = along(single_graph(dataset), direction=run.spec.model.direction)
    dtype = getattr(torch, run.spec.training.dtype)
    axis = open_axis((tuple(range(run.world_size)),), rank=run.rank)
    try:
        model = load_exported(run.model_from).to(run.device, dtype)
        objective = resolve_objective(run.spec.training, dataset)
        board, predictions = Scoreboard.of(objective, device=run.device), Predictions(objective)
        with open_features(graph, plan=run.plan, axis=axis, device=run.device, address=run.address) as features:
            evaluator = Evaluator(features.graph, axis=axis, device=run.device, dtype=dtype)
            for nodes, outputs in evaluator.outputs(model):
                y, split = (torch.from_numpy(array[nodes]).to(run.device) for array in (graph.y, graph.split))
                board.add(outputs, y=y, split=split)
                if run.spec.task == "predict":
                    ids = torch.arange(nodes.start, nodes.stop, device=run.device)
                    predictions.add(outputs, ids=ids, y=y, split=split)
        return report_use(run, board=board, predictions=predictions, axis=axis, memory=memory)
    finally:
        axis.close()
