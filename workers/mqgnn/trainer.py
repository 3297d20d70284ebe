"""The door for scripts: a module of one's own, PyG's ``Data``, and the pipeline, kernels and scores of the jobs.

    trainer = Trainer(model, data, fanouts=(10, 5), loss=functional.cross_entropy, optimizer=optimizer)
    trainer.fit(epochs=20)
    scores, logits = trainer.evaluate(), trainer.predict([7, 3])

Runs in a plain script, alone. Where ``torch.distributed`` was started (by ``torchrun``, or inside a job), all its
ranks are replicas: they share each mini-batch's seeds, sum gradients and split evaluation; every rank calls the same.

How a module runs on mini-batches, and with which kernels, is found out by ``own.forms``; what it says of all nodes is
computed by ``own.inference``; seeds, sampling, queues and the step are those of ``mqgnn.train``.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from planner.plan import QueueBudget
from planner.sync import SyncRule
from workers.comm.axis import Axis, open_axis
from workers.comm.reduce import copy_from_first
from workers.data.graph import GraphDataset, Task, rows_to_train
from workers.errors import DatasetInvalidError, ModelInvalidError, ObjectiveInvalidError, SeedsInvalidError
from workers.model_specs.sampled import SamplerName
from workers.models.node_table import give_table, table_of
from workers.models.pyg_sources import remove_generated_sources
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.goals import scorer_of
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.own.forms import Form
from workers.mqgnn.own.graph import OwnGraph, OwnSettings
from workers.mqgnn.own.judging import check_module
from workers.mqgnn.own.plain import PlainGraph
from workers.mqgnn.own.typed import TypedGraph
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.sync_rules import open_exchange
from workers.mqgnn.table_exchange import with_table
from workers.spec import LinkSpec, LossName, MetricName, ScheduleSpec, TrainingSpec
from workers.training.divergence import sum_shares
from workers.training.losses import Loss, build_loss, links_wanted
from workers.training.objective import Objective, resolve_objective
from workers.training.schedules import Schedule

_QUEUE_ITEMS, _QUEUE_BYTES = 4, 256 * 2**20  # where queues begin; they size themselves


@dataclass(frozen=True)
class EpochReport:
    """One epoch: mean ``loss`` of its seeds, the rate of its last step, ``{split}_{metric}`` where it was scored."""

    epoch: int
    loss: float
    learning_rate: float
    seconds: float
    scores: dict[str, float] = field(default_factory=dict)


# Called after every epoch; what is true ends the training.
Callback = Callable[[EpochReport], bool | None]
# (outputs of the seeds, their labels as in the data; or scores of links and false ones, and 1 and 0) -> a mean
MeanLoss = Callable[[Tensor, Tensor], Tensor]


class Trainer:
    """Trains ``model`` on sampled neighbourhoods in ``data``, then says what it says of every node, exactly.

    ``model`` is called ``(x, edge_index)``, or ``(x, adj_t)`` where the data has that, and returns one row per node.
    ``form`` tells how it runs on mini-batches (``workers.mqgnn.own.forms``).
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        *,
        fanouts: Sequence[int] = (10, 5),
        batch_size: int = 512,
        loss: MeanLoss | LossName | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        metric: MetricName | None = None,
        class_weights: Any = None,
        task: Task | None = None,
        links: LinkSpec | None = None,
        node_embedding_size: int = 0,
        sampler: SamplerName = "uniform",
        replace: bool = False,
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
        pipelined: bool | None = None,
        num_sampling_workers: int = 1,
    ) -> None:
        """Look at all of it, and find out how ``model`` runs.

        ``loss`` is a function of one's own, which gives a mean, or a name of the job spec (as ``metric`` and
        ``class_weights`` are); without it that of the labels. ``optimizer`` is Adam with a rate of 0.01 by default.
        ``scheduler`` is one of torch's, stepped after each epoch, or a ``ScheduleSpec``. ``pipelined`` samples in
        threads beside the training: by default on GPUs, since on CPUs two threads in one kernel are faster than two
        stages. Results do not depend on it. With ``links`` the outputs are embeddings, and what is learned is which
        nodes are linked (``workers.mqgnn.link_scores``). With ``node_embedding_size`` so many numbers are learned for
        each node and lie beside its features, which there may be none of: ``model`` gets a ``node_table``
        (``workers.models.node_table``); one that has it goes on with its rows.

        Raises ``DatasetInvalidError``, ``ModelInvalidError`` and ``ObjectiveInvalidError``.
        """
        check_module(model)
        self.model, self._seed = model, seed
        weight = next(model.parameters(), torch.empty(0))
        self._device, self._dtype = weight.device, weight.dtype
        node_embedding_size = _size_of_rows(model, asked=node_embedding_size)
        settings = OwnSettings(
            task=task,
            links=links,
            node_embedding_size=node_embedding_size,
            fanouts=tuple(fanouts),
            sampler=sampler,
            replace=replace,
            num_sampling_workers=num_sampling_workers,
            device=self._device,
            dtype=self._dtype,
            seed=seed,
        )
        self._own: OwnGraph = (TypedGraph if isinstance(data, HeteroData) else PlainGraph)(data, settings)
        if node_embedding_size:
            self._learn_rows(node_embedding_size)
        self._batch_size, self._callbacks = batch_size, tuple(callbacks)
        self._pipelined = self._device.type == "cuda" if pipelined is None else pipelined
        self._num_outputs = self._judge()
        named = loss if isinstance(loss, str) else None
        spec = TrainingSpec(loss=named, metric=metric, class_weights=class_weights)
        self._objective = _objective(spec, self.dataset, num_outputs=self._num_outputs)
        self._loss = self._summed(loss) if callable(loss) else build_loss(self._objective)
        self.optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        self._scheduler, self._epoch = scheduler, 0
        self._left: tuple[dict[str, Any], dict[str, Tensor]] | None = None  # by the exchange of the last ``fit``

    @property
    def form(self) -> Form:
        """How the module runs on mini-batches."""
        return self._own.form

    @property
    def runs_by_calls(self) -> bool:
        """Whether scores and predictions take one convolution after the other, not the whole graph at once."""
        return self._own.by_calls

    @property
    def dataset(self) -> GraphDataset:
        """What is trained on and scored, as ours has it: parts of the split, hidden links."""
        return self._own.dataset

    def fit(self, epochs: int, *, eval_every_epochs: int | None = None) -> list[EpochReport]:
        """Train for so many epochs more. One report of each, scored every so many and at the end where asked for.

        Collective. Raises ``DatasetInvalidError`` without nodes to train on, and ``TrainingDivergedError``.
        """
        train_rows = rows_to_train(self.dataset)
        if not len(train_rows):
            raise DatasetInvalidError("data.train_mask is empty or not there: nothing to learn from")
        reports: list[EpochReport] = []
        with _all_ranks() as axis:
            order = SeedOrder(train_rows, self._batch_size, self._seed, world_size=axis.size)
            last = self._epoch + epochs
            schedule = self._schedule(order, last_epoch=last)
            with open_exchange(SyncRule(), self.model, optimizer=self.optimizer, axis=axis) as inner:
                exchange = self._going_on(with_table(inner, self.model, axis=axis))
                replica = ReplicaStep(
                    self.model,
                    optimizer=self.optimizer,
                    loss=self._loss,
                    exchange=exchange,
                    seed=self._seed,
                    forward=self._own.forward(rank=axis.index),
                )
                tasks = order.tasks(self._epoch * order.steps_per_epoch, last * order.steps_per_epoch)
                with self._pipeline(order, axis=axis).run(tasks) as batches:
                    while self._epoch < last:
                        is_scored = eval_every_epochs is not None and (
                            (self._epoch + 1) % eval_every_epochs == 0 or self._epoch + 1 == last
                        )
                        reports.append(
                            self._take_epoch(order, batches, replica, axis=axis, schedule=schedule, is_scored=is_scored)
                        )
                        answers = [callback(reports[-1]) for callback in self._callbacks]
                        if any(answers):
                            break
                self._left = exchange.state_dict(), exchange.tensors()
        return reports

    def evaluate(self) -> dict[str, float]:
        """``{split}_{metric}`` over all nodes with a label, each with all its neighbours. Collective."""
        with _all_ranks() as axis:
            return self._scores(axis)

    def predict(self, nodes: Sequence[int] | np.ndarray | Tensor | None = None) -> Tensor:
        """Outputs [n, C] of ``nodes`` in the order asked, without them of all nodes, on the CPU.

        Each node hears from all its neighbours. Collective. Raises ``SeedsInvalidError`` for a number that is no node.
        """
        num_nodes = self.dataset.num_nodes
        asked = np.arange(num_nodes) if nodes is None else np.asarray(nodes, dtype=np.int64)
        if len(wrong := np.flatnonzero((asked < 0) | (asked >= num_nodes))):
            raise SeedsInvalidError(f"node {asked[wrong[0]]} was asked for; the nodes are 0..{num_nodes - 1}")
        with _all_ranks() as axis:
            everything = self._own.evaluator(self.model, axis=axis).all_outputs(self.model, width=self._num_outputs)
            return everything[torch.from_numpy(asked).to(self._device)].cpu()

    def _learn_rows(self, size: int) -> None:
        if (table := table_of(self.model)) is None:
            give_table(self.model, size)
            table = self.model.node_table.to(self._device, self._dtype)
        if not len(table.weight):
            table.fill(self._own.num_rows)
        if len(table.weight) != self._own.num_rows:
            raise ModelInvalidError(
                f"the module has learned rows for {len(table.weight)} nodes, data has {self._own.num_rows}: they are of"
                " use on their own graph alone"
            )

    def _going_on(self, exchange: Exchange) -> Exchange:
        """``exchange`` with the moments of learned rows as they were left."""
        if self._left is not None:
            state, tensors = self._left
            exchange.load_state_dict(state, step=0)
            for name, tensor in exchange.tensors().items():
                tensor.copy_(tensors[name])
        return exchange

    def _summed(self, loss: MeanLoss) -> Loss:
        """A user's mean as the sum over rows that the engine divides."""
        like, of_links = self._own.labels, self.dataset.links is not None

        def summed(outputs: Tensor, y: Tensor) -> Tensor:
            if not len(y):
                return outputs.sum()
            wanted = links_wanted(outputs) if of_links else y.reshape(len(y), *like.shape[1:]).to(like.dtype)
            found = loss(outputs, wanted)
            if not isinstance(found, Tensor) or found.numel() != 1:
                raise ObjectiveInvalidError("loss(outputs, y) must give one number, the mean over its rows")
            return found.reshape(()) * len(y)

        return summed

    def _judge(self) -> int:
        """Find out how the module runs, alike on all replicas. Returns the width of its outputs."""
        was_training = self.model.training
        num_outputs = self._own.outputs_width(self.model)
        with _all_ranks() as axis:
            copy_from_first(self.model.state_dict().values(), axis=axis)
        self._own.judge(self.model)
        self.model.train(was_training)
        remove_generated_sources()
        return num_outputs

    def _pipeline(self, order: SeedOrder, *, axis: Axis) -> Pipeline:
        stages = self._own.stages(order, rank=axis.index)
        budgets = [QueueBudget(name=stage.name, max_items=_QUEUE_ITEMS, max_bytes=_QUEUE_BYTES) for stage in stages]
        return Pipeline(stages, budgets=budgets, pipelined=self._pipelined)

    def _schedule(self, order: SeedOrder, *, last_epoch: int) -> Schedule | None:
        if not isinstance(self._scheduler, ScheduleSpec):
            return None
        return Schedule(
            self._scheduler,
            peak=self.optimizer.defaults["lr"],
            steps_per_epoch=order.steps_per_epoch,
            total_steps=last_epoch * order.steps_per_epoch,
        )

    def _take_epoch(
        self,
        order: SeedOrder,
        batches: Iterator[MiniBatch],
        replica: ReplicaStep,
        *,
        axis: Axis,
        schedule: Schedule | None,
        is_scored: bool,
    ) -> EpochReport:
        started, total = time.perf_counter(), 0.0
        for number in range(order.steps_per_epoch):
            step = self._epoch * order.steps_per_epoch + number + 1
            if schedule is not None:
                schedule.apply(self.optimizer, step=step)
            batch = next(batches)
            with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
                share = replica.compute(batch)  # which seeds what draws by itself: a user's own draws are left alone
            total += batch.num_seeds_all * sum_shares(replica.exchange(share), ranks=range(axis.size), step=step)
            replica.update()
        self._epoch += 1
        report = EpochReport(
            epoch=self._epoch,
            loss=total / len(order.train_nodes),
            learning_rate=self.optimizer.param_groups[0]["lr"],
            seconds=time.perf_counter() - started,
            scores=self._scores(axis) if is_scored else {},
        )
        if self._scheduler is not None and schedule is None:
            self._step_scheduler(report)
        return report

    def _step_scheduler(self, report: EpochReport) -> None:
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(report.scores.get(f"val_{self._objective.metric}", report.loss))
        else:
            self._scheduler.step()

    def _scores(self, axis: Axis) -> dict[str, float]:
        evaluator, objective = self._own.evaluator(self.model, axis=axis), self._objective
        return scorer_of(self.dataset, evaluator=evaluator, objective=objective, axis=axis)(self.model)


def _objective(spec: TrainingSpec, dataset: GraphDataset, *, num_outputs: int) -> Objective:
    """Of as many outputs as the module has. Raises ``ObjectiveInvalidError``."""
    if dataset.task == "classes" and dataset.num_classes > num_outputs:
        raise ObjectiveInvalidError(
            f"data.y holds the class {dataset.num_classes - 1}, the module has {num_outputs} outputs: one for each is"
            " needed"
        )
    if dataset.task in ("multilabel", "regression") and dataset.num_classes != num_outputs:
        raise ObjectiveInvalidError(
            f"data.y has {dataset.num_classes} numbers for each node, the module {num_outputs} outputs: as many are"
            " needed"
        )
    return resolve_objective(spec, dataclasses.replace(dataset, num_classes=num_outputs))


def _size_of_rows(model: nn.Module, *, asked: int) -> int:
    """What is to be learned for each node, which a module that has learned some before tells by itself."""
    table = table_of(model)
    if table is not None and asked not in (0, table.size):
        raise ModelInvalidError(
            f"node_embedding_size {asked} was asked for; the module has learned {table.size} numbers for each node:"
            " leave it out"
        )
    return asked if table is None else table.size


@contextmanager
def _all_ranks() -> Iterator[Axis]:
    """The line of all ranks, closed at the end; this process alone where none was started."""
    if not dist.is_initialized():
        yield Axis()
        return
    axis = open_axis((tuple(range(dist.get_world_size())),), rank=dist.get_rank())
    try:
        yield axis
    finally:
        axis.close()
