"""What happens between steps: evaluation, checkpoints, reports, and the export at the end.

All of it follows a rule on the step number alone, so that all ranks do the same collectives in the same order: a report
after the first step of this attempt, after every ``report_every_steps``, and with each evaluation and checkpoint; these
at the ends of their epochs and of the run, evaluation first, so that a checkpoint knows the best model of its epoch.
Checkpoints may also come every so many steps, wherever in an epoch that is.
A run whose score no longer gets better may end early; the scores are equal on all ranks, so they end together.
Replicas that step by themselves agree on their weights before they are scored or saved, and meet before a report that
all make together.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import GraphDataset
from workers.training.checkpoint import CheckpointRef, CheckpointStore
from workers.training.divergence import check_finite
from workers.training.evaluation import BestModel
from workers.training.export import export_model
from workers.training.memory import PeakMemory
from workers.training.objective import Objective
from workers.training.run import RankRun, Report
from workers.training.schedules import Schedule
from workers.training.state import gather_tensors, model_tensors, optimizer_tensors, tensor_names


class Meter(Protocol):
    """What was measured of the steps since it was last asked."""

    def take(self) -> dict[str, float]:
        """``loss``, ``step_time_s``, ``items_per_s`` (all ranks) and what else there is; clears them."""


class Replicas(Protocol):
    """Replicas that may have gone different ways since they agreed last (``workers.mqgnn.exchange``).

    What is written here is that of ranks that take every step together.
    """

    began_at: int | None = None  # the step after which others let this replica in; None where all began together

    def meet(self) -> None:
        """Wait until all have taken as many steps."""

    def agree(self) -> None:
        """As ``meet``, and all hold the same afterwards."""

    def told(self, key: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, in JSON types, the same on all; ``key`` names it. All call it alike."""
        return make()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, in JSON types."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps beside, filled in place when it is loaded."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], *, step: int) -> None:
        """Go on after ``step``."""


class _Together(Replicas):
    """Ranks that take every step together."""


class Milestones:
    """Keeps one rank's part of ``model`` and its ``optimizer`` measured, saved and reported.

    ``evaluate`` gives the scores of the present model over all ranks, which are those of ``axis``; it is collective.
    The learning rate of each step is set here, before it. ``replicas`` is given where ranks step by themselves; those
    that outlive each other have each an ``axis`` alone, and one does for all what others do together.
    """

    def __init__(
        self,
        run: RankRun,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: GraphDataset,
        objective: Objective,
        steps_per_epoch: int,
        evaluate: Callable[[], dict[str, float]],
        axis: Axis,
        meter: Meter,
        memory: PeakMemory,
        replicas: Replicas | None = None,
    ) -> None:
        self._run, self._model, self._optimizer, self._dataset = run, model, optimizer, dataset
        self._steps_per_epoch = run.progress.steps_per_epoch = steps_per_epoch
        self.total_steps = run.spec.training.epochs * steps_per_epoch
        self._compute_scores, self._axis, self._meter, self._memory = evaluate, axis, meter, memory
        self._checkpoints = CheckpointStore(run.job_dir / "checkpoints", axis=axis, device=run.device)
        self._best = BestModel(metric=objective.metric)
        self._replicas = replicas or _Together()
        self._schedule = Schedule(
            run.spec.training.schedule,
            peak=run.spec.training.learning_rate,
            steps_per_epoch=steps_per_epoch,
            total_steps=self.total_steps,
        )

    def resume(self) -> int:
        """Load the latest checkpoint, if any. Returns the step after which it was taken, else 0. Collective.

        The first rank chooses for all: a storage may show a new file to one machine before another. Tensors go by their
        names, so a run may resume under another plan and on another number of ranks. A replica that others have let in
        has its weights from them, and learns the rest.
        """
        if self._replicas.began_at is not None:
            step = self._replicas.began_at
            self._catch_up(step)
        else:
            step = self._replicas.told("resume", self._newest_step)
            if step:
                self._load(step)
        self._schedule.apply(self._optimizer, step=step + 1)
        return step

    def _newest_step(self) -> int:
        found = self._checkpoints.latest() if self._axis.index == 0 else None
        return self._axis.first_says(found.step if found else 0, device=self._run.device)

    def _catch_up(self, step: int) -> None:
        """Know of the best model and the schedule what all others know after ``step``.

        Limit: of a best model since the last checkpoint there is no copy here, but the weights with which this replica
        came back; they count only if it outlives all who have one.
        """
        found = self._checkpoints.latest()
        saved = 0 if found is None else found.step
        if found is not None:
            self._load_best(found)
        for done in range(saved + 1, step + 1):
            if self._due(done, every_epochs=self._run.spec.training.eval_every_epochs):
                self._hear(done, self._replicas.told(f"scores/{done}", dict))

    def is_over(self, step: int) -> bool:
        """Whether the run ends after ``step``: it was the last, or too many evaluations were no better."""
        return step == self.total_steps or self._best.has_waited(self._run.spec.training.early_stopping)

    def _load(self, step: int) -> None:
        reference = self._checkpoints.at(step)
        self._load_best(reference, **self._own_tensors())
        self._replicas.load_state_dict(reference.values["replicas"], step=step)

    def _load_best(self, reference: CheckpointRef, **others: Tensor) -> None:
        """The best model and the schedule as of a checkpoint, and with them ``others`` by their names there."""
        best, has_best = dict(reference.values["best"]), reference.values["has_best"]
        if has_best:
            best["state"] = {name: tensor.detach().cpu().clone() for name, tensor in model_tensors(self._model).items()}
        self._best = BestModel(**best)
        self._checkpoints.load(reference, tensors={**others, **_named("best", self._best.state or {})})
        self._schedule.load_state_dict(reference.values["schedule"])

    def after_step(self, step: int, *, first: bool) -> dict[str, float]:
        """Do what is due after optimiser step ``step``, the ``first`` of this attempt or not. Collective.

        Returns the values reported, none when no report was due.
        """
        spec = self._run.spec.training
        rate = self._schedule.rate(step)
        self._gather(step, first=first)
        scores = self._evaluate(step) if self._due(step, every_epochs=spec.eval_every_epochs) else {}
        is_over = self.is_over(step)
        checkpoint = self._save(step) if is_over or self._is_saved(step) else None
        self._schedule.apply(self._optimizer, step=step + 1)
        if not (scores or checkpoint or self._reports(step, first=first)):
            return {}
        values = self._meter.take() | {"learning_rate": rate} | scores
        if is_over:
            with self._run.progress.during("checkpoint"):
                values |= self._finish()
        return self._report(step, values, checkpoint=checkpoint)

    def finish_again(self, step: int) -> dict[str, float]:
        """For a run that was stopped between its last checkpoint, of ``step``, and its end: export, report the end."""
        return self._report(step, self._finish())

    def _due(self, step: int, *, every_epochs: int) -> bool:
        epoch, into_epoch = divmod(step, self._steps_per_epoch)
        return not into_epoch and (step == self.total_steps or epoch % every_epochs == 0)

    def _is_saved(self, step: int) -> bool:
        spec = self._run.spec.training
        every_steps = spec.checkpoint_every_steps
        is_at_step = every_steps is not None and step % every_steps == 0
        return is_at_step or self._due(step, every_epochs=spec.checkpoint_every_epochs)

    def _reports(self, step: int, *, first: bool) -> bool:
        return first or step % self._run.plan.report_every_steps == 0

    def _gather(self, step: int, *, first: bool) -> None:
        """Have replicas that step by themselves agree, or meet, before what all do together after ``step``."""
        if self._due(step, every_epochs=self._run.spec.training.eval_every_epochs) or self._is_saved(step):
            self._replicas.agree()
        elif self._run.store is None and self._reports(step, first=first):
            self._replicas.meet()

    def _evaluate(self, step: int) -> dict[str, float]:
        with self._run.progress.during("evaluation"):
            scores: dict[str, float] = self._replicas.told(f"scores/{step}", self._compute_scores)
        self._hear(step, scores)
        return scores

    def _hear(self, step: int, scores: dict[str, float]) -> None:
        """Take note of the model's ``scores`` after ``step``."""
        is_better = self._best.offer(self._model, epoch=step // self._steps_per_epoch, scores=scores)
        self._schedule.scored(is_better=is_better)

    def _save(self, step: int) -> str:
        """Save what every rank holds. Returns where."""
        best = {name: value for name, value in vars(self._best).items() if name != "state"}

        def save() -> str:
            values = {
                "best": best,
                "has_best": self._best.state is not None,
                "schedule": self._schedule.state_dict(),
                "replicas": self._replicas.state_dict(),
            }
            check_finite(model_tensors(self._model), names=tensor_names(self._model), axis=self._axis, step=step)
            tensors = {**self._own_tensors(), **_named("best", self._best.state or {})}
            return self._checkpoints.save(step, tensors=tensors, values=values).folder.uri

        with self._run.progress.during("checkpoint"):
            place: str = self._replicas.told(f"checkpoint/{step}", save)
        return place

    def _own_tensors(self) -> dict[str, Tensor]:
        """The model and the moments of this rank, by their names in a checkpoint."""
        return {
            **_named("model", model_tensors(self._model)),
            **_named("optimizer", optimizer_tensors(self._model, optimizer=self._optimizer)),
            **_named("replicas", self._replicas.tensors()),
        }

    def _finish(self) -> dict[str, float]:
        """Export the best model (rank 0). Returns what the last report says on top."""
        values: dict[str, float] = self._replicas.told("done", self._export)
        return values

    def _export(self) -> dict[str, float]:
        best = self._best
        values = {"done": 1.0, "best_epoch": float(best.epoch)}
        values |= {name: score for name, score in best.scores.items() if not name.startswith("train_")}
        weights = gather_tensors(best.state or {}, axis=self._axis)
        if self._axis.index == 0 and weights:
            export_model(
                weights,
                spec=self._run.spec.model,
                num_features=self._dataset.num_features,
                num_classes=self._dataset.num_classes,
                folder=self._run.job_dir / "export",
                extra={"dataset": self._run.spec.dataset.model_dump(mode="json"), **values},
            )
        self._axis.barrier()
        return values

    def _report(self, step: int, values: dict[str, float], *, checkpoint: str | None = None) -> dict[str, float]:
        values = values | {"peak_memory_bytes": float(self._memory.peak_bytes())}
        epoch = (step - 1) // self._steps_per_epoch + 1
        said = Report(step=step, total_steps=self.total_steps, epoch=epoch, values=values, checkpoint=checkpoint)
        with self._run.progress.during("report"):
            self._run.report(said)
        return values


def _named(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{part}/{name}": tensor for name, tensor in tensors.items()}
