"""The MQ-GNN runtime of one rank: sampled training of a GNN as its plan says, from data set to exported model.

    tasks ─▶ sample ─▶ prepare ─▶ (transfer) ─▶ compute ─▶ exchange ─▶ update ─▶ evaluate, checkpoint, report
    └ threads with bounded queues, or in a row ┘ └───────────────────── this thread ──────────────────────┘

All random numbers are functions of (seed, epoch, batch, …), so a resumed run continues as if it had never stopped, and
pipelined and serial runs give the same weights bit for bit.
"""

import math

import torch

from planner.errors import PlanInvalidError
from planner.plan import MQGNNPlan
from workers.data.datasets import load_dataset
from workers.data.graph import TRAIN, Graph, GraphDataset
from workers.errors import DatasetInvalidError, TrainingDivergedError
from workers.models.registry import build_model
from workers.mqgnn.engine import ReplicaStep, build_optimizer
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import AllReduce, Communicator, close_communicator, open_communicator
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.progress import ProgressMeter, Stopwatch
from workers.mqgnn.seed_order import SeedOrder
from workers.training.memory import PeakMemory
from workers.training.milestones import Milestones
from workers.training.run import RankRun
from workers.training.seeding import seed_everything


def train(run: RankRun) -> dict[str, float]:
    """Train, evaluate and export as ``run`` says; returns the values of the last report. Collective over its ranks.

    Raises ``DatasetInvalidError``, ``PlanInvalidError``, ``StageFailedError`` and ``TrainingDivergedError``.
    """
    check_plan(run)
    torch.set_num_threads(run.plan.num_threads)
    seed_everything(run.spec.training.seed)
    dataset = load_dataset(run.spec.dataset, paths=run.data)
    graph = single_graph(dataset)
    communicator = open_communicator(run.world_size)
    try:
        return _train(run, dataset, graph=graph, communicator=communicator)
    finally:
        close_communicator(communicator)


def single_graph(dataset: GraphDataset) -> Graph:
    """The one graph of ``dataset``. Raises ``DatasetInvalidError`` when it has many."""
    if len(dataset.graphs) != 1:
        raise DatasetInvalidError(
            f"neighbour sampling trains on one graph; {dataset.name} has {len(dataset.graphs)}:"
            " choose a data set of one graph, or kind 'megagraph'"
        )
    return dataset.graphs[0]


def check_plan(run: RankRun) -> None:
    """Hold the plan against the run. Raises ``PlanInvalidError``."""
    plan, num_layers = run.plan, len(run.spec.model.fanouts)
    if not isinstance(plan, MQGNNPlan):
        raise PlanInvalidError(f"this runtime obeys plans of kind 'mqgnn'; found {plan.kind!r}")
    if plan.world_size != run.world_size or len(plan.fanouts) != num_layers:
        raise PlanInvalidError(
            f"the plan is for {plan.world_size} ranks and {len(plan.fanouts)} layers,"
            f" the run has {run.world_size} ranks and {num_layers} layers; plan again"
        )


def _train(run: RankRun, dataset: GraphDataset, *, graph: Graph, communicator: Communicator) -> dict[str, float]:
    """Build everything from the plan, then take all steps that are left."""
    spec, dtype = run.spec.training, getattr(torch, run.spec.training.dtype)
    memory = PeakMemory(run.device)
    memory.start()
    model = build_model(run.spec.model, num_features=dataset.num_features, num_classes=dataset.num_classes)
    model = model.to(run.device, dtype)
    optimizer = build_optimizer(model, learning_rate=spec.learning_rate, weight_decay=spec.weight_decay)
    exchange = AllReduce(model, communicator=communicator)
    replica = ReplicaStep(model, optimizer=optimizer, exchange=exchange, seed=spec.seed, rank=run.rank)
    order = SeedOrder(
        train_nodes=(graph.split == TRAIN).nonzero()[0],
        batch_size=run.plan.batch_size,
        seed=spec.seed,
        world_size=run.world_size,
    )
    stages = build_stages(
        graph,
        order=order,
        fanouts=run.plan.fanouts,
        rank=run.rank,
        device=run.device,
        dtype=dtype,
        num_sampling_workers=run.plan.num_sampling_workers,
    )
    pipeline = Pipeline(stages, budgets=run.plan.queues, pipelined=run.plan.pipelined)
    progress = ProgressMeter(pipeline)
    evaluator = Evaluator(graph, rank=run.rank, communicator=communicator, device=run.device, dtype=dtype)
    milestones = Milestones(
        run,
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        steps_per_epoch=order.steps_per_epoch,
        count=lambda: evaluator.count(model),
        barrier=communicator.barrier,
        meter=progress,
        memory=memory,
    )
    return _take_all_steps(
        run, order=order, pipeline=pipeline, replica=replica, progress=progress, milestones=milestones
    )


def _take_all_steps(
    run: RankRun,
    *,
    order: SeedOrder,
    pipeline: Pipeline,
    replica: ReplicaStep,
    progress: ProgressMeter,
    milestones: Milestones,
) -> dict[str, float]:
    """From the step after the last checkpoint to the end. Returns the values of the last report."""
    start, total_steps = milestones.resume(), run.spec.training.epochs * order.steps_per_epoch
    if start == total_steps:
        return milestones.finish_again()
    values: dict[str, float] = {}
    with pipeline.run(order.tasks(start, total_steps)) as batches:
        watch = Stopwatch()
        for step, batch in enumerate(batches, start + 1):
            _take_step(run, step=step, batch=batch, replica=replica, progress=progress, watch=watch)
            values = milestones.after_step(step, first=step == start + 1)
            watch.lap()  # what the milestones took is not part of the next step
    return values


def _take_step(
    run: RankRun, *, step: int, batch: MiniBatch, replica: ReplicaStep, progress: ProgressMeter, watch: Stopwatch
) -> None:
    wait_s = watch.lap()
    share = replica.compute(batch)
    compute_s = watch.lap()
    loss = replica.exchange(share)
    if not math.isfinite(loss):
        raise TrainingDivergedError(
            f"the loss is {loss} at step {step} (epoch {batch.task.epoch}), the share of rank {run.rank} in it is"
            f" {share.item()}; try a learning rate below {run.spec.training.learning_rate:g}",
            step=step,
            rank=run.rank,
        )
    exchange_s = watch.lap()
    replica.update()
    progress.add_step(
        loss=loss,
        num_seeds=batch.num_seeds_all,
        wait_s=wait_s,
        compute_s=compute_s,
        exchange_s=exchange_s,
        update_s=watch.lap(),
    )
