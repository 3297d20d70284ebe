"""What happens between steps: evaluation, checkpoints, reports, and the export at the end.

When it happens is a rule on the step number alone, so that all replicas do the same collectives in the same order:
a report after the first step of this attempt, after every ``report_every_steps``, and with each evaluation and
checkpoint; evaluation and checkpoint at the ends of their epochs and of the run, in this order, so that a checkpoint
knows the best model of its own epoch.
"""

from typing import Any

import torch
from torch import nn

from workers.data.graph import TEST, Graph
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import Communicator
from workers.mqgnn.progress import ProgressMeter
from workers.training.checkpoint import CheckpointStore
from workers.training.evaluation import BestModel, accuracies
from workers.training.export import export_model
from workers.training.memory import PeakMemory
from workers.training.run import RankRun, Report


class Milestones:
    """Keeps one replica's ``model`` and ``optimizer`` measured, saved and reported. ``graph`` has ``num_classes``."""

    def __init__(
        self,
        run: RankRun,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        graph: Graph,
        num_classes: int,
        steps_per_epoch: int,
        communicator: Communicator,
        progress: ProgressMeter,
        memory: PeakMemory,
    ) -> None:
        self._run, self._model, self._optimizer = run, model, optimizer
        self._graph, self._num_classes, self._steps_per_epoch = graph, num_classes, steps_per_epoch
        self._communicator, self._progress, self._memory = communicator, progress, memory
        self._total_steps = run.spec.training.epochs * steps_per_epoch
        self._evaluator = Evaluator(
            graph,
            rank=run.rank,
            communicator=communicator,
            device=run.device,
            dtype=next(model.parameters()).dtype,
        )
        self._checkpoints = CheckpointStore(run.job_dir / "checkpoints")
        self._best = BestModel()

    def resume(self) -> int:
        """Load the latest checkpoint, if any. Returns the step it was taken after, else 0.

        Replicas hold equal states, so a run may resume with another number of them.
        """
        reference = self._checkpoints.latest()
        if reference is None:
            return 0
        state = self._checkpoints.load(reference, rank=self._run.rank % reference.world_size)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._best = BestModel(**state["best"])
        return reference.step

    def after_step(self, step: int, *, first: bool) -> dict[str, float]:
        """Do what is due after optimiser step ``step``, the ``first`` of this attempt or not. Collective.

        Returns the values reported, nothing when no report was due.
        """
        spec, last = self._run.spec.training, step == self._total_steps
        epoch, into_epoch = divmod(step, self._steps_per_epoch)
        scores: dict[str, float] = {}
        checkpoint = None
        if not into_epoch and (last or epoch % spec.eval_every_epochs == 0):
            scores = accuracies(self._evaluator.count(self._model))
            self._best.offer(self._model, epoch=epoch, scores=scores)
        if not into_epoch and (last or epoch % spec.checkpoint_every_epochs == 0):
            checkpoint = self._save(step)
        if not (first or scores or checkpoint or step % self._run.plan.report_every_steps == 0):
            return {}
        values = self._progress.take() | {"learning_rate": spec.learning_rate} | scores
        if last:
            values |= self._export()
        return self._report(step, values, checkpoint=checkpoint)

    def finish_again(self) -> dict[str, float]:
        """For a run that was stopped between its last checkpoint and its end: export, and report the end."""
        return self._report(self._total_steps, self._export())

    def _save(self, step: int) -> str:
        state: dict[str, Any] = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "best": vars(self._best),
        }
        reference = self._checkpoints.save(
            step,
            rank=self._run.rank,
            world_size=self._run.world_size,
            state=state,
            barrier=self._communicator.barrier,
        )
        return reference.folder.uri

    def _export(self) -> dict[str, float]:
        """Write the best model (rank 0). Returns what the last report says on top."""
        best = self._best
        values = {"done": 1.0, "best_epoch": float(best.epoch)}
        if best.val_accuracy >= 0:
            values["val_accuracy"] = best.val_accuracy
        if (self._graph.split == TEST).any():
            values["test_accuracy"] = best.test_accuracy
        if self._run.rank == 0 and best.state is not None:
            export_model(
                best.state,
                spec=self._run.spec.model,
                num_features=self._graph.features.num_features,
                num_classes=self._num_classes,
                folder=self._run.job_dir / "export",
                extra={"dataset": self._run.spec.dataset.model_dump(mode="json"), **values},
            )
        self._communicator.barrier()
        return values

    def _report(self, step: int, values: dict[str, float], *, checkpoint: str | None = None) -> dict[str, float]:
        values = values | {"peak_memory_bytes": float(self._memory.peak_bytes())}
        epoch = (step - 1) // self._steps_per_epoch + 1
        self._run.report(
            Report(step=step, total_steps=self._total_steps, epoch=epoch, values=values, checkpoint=checkpoint)
        )
        return values
