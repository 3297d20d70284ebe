"""The MegaGraph runtime of one rank: a graph transformer trained as its plan says, from data set to exported model.

    graphs ─ deal ─▶ micro-batches ─ cut ─▶ own rows ─▶ play the plan's actions ─▶ sum gradients ─▶ update
                                         (rows between stages, ring in attention)        ─▶ evaluate, checkpoint, report

Order of graphs, dropout and first weights are functions of (seed, epoch, step), never of the ranks, so one rank and
many train alike and a resumed run continues as if it had never stopped.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from workers.comm.mesh import Mesh
from workers.data.datasets import load_dataset
from workers.data.graph import GraphDataset
from workers.data.partition import NodeCuts
from workers.errors import DatasetInvalidError
from workers.megagraph.batches import ShardedBatches
from workers.megagraph.data_parallel import GlobalStep, GraphDealer
from workers.megagraph.dealing import Dealing
from workers.megagraph.meter import StepMeter
from workers.megagraph.parallelize import ParallelModel, check_partition, check_runnable, parallelize
from workers.megagraph.training_step import evaluate_global, run_step
from workers.models.attention import choose_kernel
from workers.models.registry import build_model
from workers.ops.counter_dropout import draw_of
from workers.training.export import load_exported
from workers.training.losses import build_loss
from workers.training.memory import PeakMemory
from workers.training.milestones import Milestones
from workers.training.model_fit import resolve_model
from workers.training.objective import resolve_objective
from workers.training.optimizer import build_optimizer, weight_matrices
from workers.training.run import RankRun
from workers.training.seeding import seed_everything
from workers.watch.progress import follow_units


def train(run: RankRun) -> dict[str, float]:
    """Train, evaluate and export as ``run`` says; returns the values of the last report. Collective over its ranks.

    Raises ``DatasetInvalidError``, ``ModelInvalidError``, ``PlanInvalidError`` and ``TrainingDivergedError``.
    """
    memory = PeakMemory(run.device)
    memory.start()
    with open_run(run) as (run, dataset, dealer, parallel):
        if not dealer.steps_per_epoch:
            raise DatasetInvalidError(
                f"{dataset.name} has nothing labelled in its training split; nothing to learn from"
            )
        return _train(run, dataset=dataset, dealer=dealer, parallel=parallel, memory=memory)


@contextmanager
def open_run(run: RankRun) -> Iterator[tuple[RankRun, GraphDataset, GraphDealer, ParallelModel]]:
    """``run`` with its model's spec resolved, the data set, who gets which graph, and this rank's part of the model.

    Collective; frees all groups at the end.

    Raises ``PlanInvalidError`` for a plan that does not fit, ``CheckpointInvalidError`` for an export that is none.
    """
    check_runnable(run.plan, units=run.spec.model.units)
    seed_everything(run.spec.training.seed)
    dataset = load_dataset(run.spec.dataset, paths=run.data)
    model = resolve_model(run.spec.model, dataset)
    run = replace(run, spec=run.spec.model_copy(update={"model": model}))
    cuts = NodeCuts(dataset.graphs, partition=run.plan.partition, num_parts=run.plan.largest_cp_degree)
    check_partition(run.plan, cuts=cuts)
    dealer = GraphDealer(
        dataset,
        batch_size=run.spec.training.batch_size,
        seed=run.spec.training.seed,
        num_micro_batches=run.plan.num_micro_batches,
    )
    parallel = _build(run, dataset=dataset, dealer=dealer, cuts=cuts)
    follow_units(parallel.model.units(), progress=run.progress)
    try:
        yield run, dataset, dealer, parallel
    finally:
        parallel.close()


def _build(run: RankRun, *, dataset: GraphDataset, dealer: GraphDealer, cuts: NodeCuts) -> ParallelModel:
    """The model, as the plan spreads it. Collective."""
    spec, dtype = run.spec.model, getattr(torch, run.spec.training.dtype)
    model = build_model(spec, num_features=dataset.num_features, num_classes=dataset.num_classes)
    if run.model_from is not None:
        model.load_state_dict(load_exported(run.model_from).state_dict())

    model.to(run.device, dtype)
    choose_kernel(model, name=run.spec.training.attention_kernel)

    def batches(mesh: Mesh) -> ShardedBatches:
        return ShardedBatches(
            dataset,
            axis=mesh.cp,
            needs=spec.needs,
            dtype=dtype,
            device=run.device,
            cuts=cuts,
            ulysses_degree=mesh.ulysses.size,
            paths=run.data,
        )

    return parallelize(
        model,
        plan=run.plan,
        rank=run.rank,
        dealing=Dealing(
            run.plan.stages,
            dealer=dealer,
            cut=lambda graph, num_shards: cuts.cut(graph, num_shards).sizes,
            rank=run.rank,
        ),
        batches=batches,
        row_width=spec.row_width,
        precision=run.spec.training.precision,
    )


def _train(
    run: RankRun, *, dataset: GraphDataset, dealer: GraphDealer, parallel: ParallelModel, memory: PeakMemory
) -> dict[str, float]:
    """Take all steps that are left."""
    spec = run.spec.training
    objective = resolve_objective(spec, dataset)
    loss = build_loss(objective)
    optimizer = build_optimizer(
        parallel.model,
        spec=spec,
        decayed=weight_matrices,
        gradient_norm=lambda: parallel.gradients.norm(over=parallel.world),
    )
    scored = dealer.evaluation(num_replicas=min(stage.dp_degree for stage in run.plan.stages))
    meter = StepMeter()
    milestones = Milestones(
        run,
        model=parallel.model,
        optimizer=optimizer,
        dataset=dataset,
        objective=objective,
        steps_per_epoch=dealer.steps_per_epoch,
        evaluate=lambda: evaluate_global(parallel, objective=objective, batches=scored),
        axis=parallel.world,
        meter=meter,
        memory=memory,
    )
    start = milestones.resume()
    if milestones.is_over(start):
        return milestones.finish_again(start)
    values: dict[str, float] = {}
    for step, share in _steps(dealer, start=start, epochs=spec.epochs):
        with run.progress.during("preparation"):
            parallel.executor.prepare(share.micro_batches)
        run.progress.begin_step(step)
        started = time.perf_counter()
        step_loss = run_step(
            parallel,
            optimizer=optimizer,
            loss=loss,
            share=share,
            actions=run.plan.actions[run.rank],
            step=step,
            draw=draw_of(spec.seed, step),
        )
        if run.device.type == "cuda":
            torch.cuda.synchronize(run.device)  # the update is still on its way
        meter.add_step(loss=step_loss, num_nodes=share.num_nodes, seconds=time.perf_counter() - started)
        values = milestones.after_step(step, first=step == start + 1)
        if milestones.is_over(step):
            break
    return values


def _steps(dealer: GraphDealer, *, start: int, epochs: int) -> Iterator[tuple[int, GlobalStep]]:
    """Number (from 1) and share of every step after ``start``, to the end of the last epoch."""
    first_epoch, into_epoch = divmod(start, dealer.steps_per_epoch)
    step = start
    for epoch in range(first_epoch + 1, epochs + 1):
        for share in dealer.epoch(epoch)[into_epoch:]:
            step += 1
            yield step, share
        into_epoch = 0
