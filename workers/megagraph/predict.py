"""The use of a trained graph transformer on all ranks: scores, and predictions for every node or graph.

The same stages, cuts and exchanges as in training, forward only; the weights come from an export.
"""

import torch

from workers.megagraph.executor import Round
from workers.megagraph.train import open_run
from workers.training.finish import report_use
from workers.training.memory import PeakMemory
from workers.training.metrics import Scoreboard
from workers.training.objective import resolve_objective
from workers.training.predictions import Predictions
from workers.training.run import RankRun


@torch.no_grad()
def predict(run: RankRun) -> dict[str, float]:
    """Do what ``run.spec.task`` says with the model of ``run.model_from``; returns the scores. Collective.

    Raises ``DatasetInvalidError``, ``PlanInvalidError`` and ``CheckpointInvalidError``.
    """
    memory = PeakMemory(run.device)
    memory.start()
    with open_run(run) as (run, dataset, dealer, parallel), run.progress.during("evaluation"):
        objective = resolve_objective(run.spec.training, dataset)
        board, predictions = Scoreboard.of(objective, device=run.device), Predictions(objective)
        parallel.model.eval()
        replicas = min(stage.dp_degree for stage in run.plan.stages)
        for outputs, batch in parallel.executor.predict(Round(dealer.everything(num_replicas=replicas), draw=0)):
            board.add(outputs, y=batch.y, split=batch.split)
            if run.spec.task == "predict":
                predictions.add(outputs, ids=batch.ids, y=batch.y, split=batch.split)
        scores = board.scores(parallel.world)
        return report_use(run, scores=scores, predictions=predictions, axis=parallel.world, memory=memory)
