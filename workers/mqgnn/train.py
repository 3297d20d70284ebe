"""The MQ-GNN runtime of one rank: sampled training of a GNN as its plan says, from data set to exported model.

    tasks ─▶ sample ─▶ prepare ─▶ (transfer) ─▶ compute ─▶ exchange ─▶ update ─▶ evaluate, checkpoint, report
    └ threads with bounded queues, or in a row ┘ └───────────────────── this thread ──────────────────────┘
      or actors elsewhere, asked ahead

How far replicas go together is the plan's ``sync``; what follows holds of ``ddp``.

All random numbers are functions of (seed, epoch, batch, node, …), so a resumed run continues as if it had never
stopped, and pipelined and serial runs give the same weights bit for bit. Replicas equal one process over the same
global batches, dropout included, where all fanouts are equal; with others a replica may meet a node at another hop than
one process does, and then samples it with another fanout. Sampling a node anew at each hop would lift that.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from planner.errors import PlanInvalidError
from workers.comm.axis import Axis, open_axis
from workers.data.graph import Graph, GraphDataset, rows_to_train
from workers.models.node_table import table_of
from workers.models.registry import build_model
from workers.models.sampled import Reading, learn_degrees
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.feature_shares import FeatureShares, open_features
from workers.mqgnn.goals import draws_of, forward_of, sampling_of, scorer_of
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.model_runs import runs_of
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages, degrees_of, in_place_of, transfer_stages
from workers.mqgnn.progress import ProgressMeter, Stopwatch
from workers.mqgnn.racom.membership import Roster, RunHasEndedError
from workers.mqgnn.remote.asking import Asker
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.stage import Stage
from workers.mqgnn.subgraph_cache import SubgraphCache
from workers.mqgnn.sync_rules import open_exchange
from workers.mqgnn.table_exchange import with_learned_features, with_table
from workers.mqgnn.trained_data import open_data
from workers.training.divergence import sum_shares
from workers.training.losses import build_loss
from workers.training.memory import PeakMemory, keep_freed_memory
from workers.training.milestones import Milestones
from workers.training.objective import resolve_objective
from workers.training.optimizer import build_optimizer, every_parameter
from workers.training.remote_calls import RemoteCalls
from workers.training.run import RankRun
from workers.training.seeding import seed_everything


def train(run: RankRun) -> dict[str, float]:
    """Train, evaluate and export as ``run`` says; returns the values of the last report. Collective over its ranks.

    Raises ``DatasetInvalidError``, ``ModelInvalidError``, ``PlanInvalidError``, ``StageFailedError`` and
    ``TrainingDivergedError``.
    """
    check_plan(run)
    keep_freed_memory()
    seed_everything(run.spec.training.seed)
    data = open_data(run.spec, paths=run.data)
    run = replace(run, spec=data.spec)
    axis = Axis() if run.store is not None else open_axis((tuple(range(run.world_size)),), rank=run.rank)
    try:
        return _train(run, data.dataset, graph=data.graph, axis=axis)
    except RunHasEndedError as ended:
        return ended.values
    finally:
        axis.close()


def check_plan(run: RankRun) -> None:
    """Hold the plan against the spec. Raises ``PlanInvalidError``."""
    if run.plan.fanouts != run.spec.model.fanouts:
        raise PlanInvalidError(
            f"the plan is for fanouts {run.plan.fanouts}, the spec asks for {run.spec.model.fanouts}; plan again"
        )
    if run.plan.features != run.spec.training.features:
        raise PlanInvalidError(
            f"the plan is for {run.plan.features} features, the spec asks for {run.spec.training.features}; plan again"
        )
    if run.plan.cache.without_bytes() != run.spec.training.cache.without_bytes():
        raise PlanInvalidError(
            f"the plan is for the cache {run.plan.cache!r}, the spec asks for {run.spec.training.cache!r}; plan again"
        )
    if run.plan.sync != run.spec.training.sync:
        raise PlanInvalidError(
            f"the plan has replicas go together by {run.plan.sync}, the spec asks for {run.spec.training.sync};"
            " plan again"
        )
    if run.plan.sampling != run.spec.training.sampling:
        raise PlanInvalidError(
            f"the plan is for the sampling {run.plan.sampling!r}, the spec asks for {run.spec.training.sampling!r};"
            " plan again"
        )
    if run.plan.sampling.is_remote and run.samplers is None:
        raise PlanInvalidError(
            "the plan has actors sample, and this run was given none; start it as a job, or plan for local sampling"
        )


def _train(run: RankRun, dataset: GraphDataset, *, graph: Graph, axis: Axis) -> dict[str, float]:
    """Build everything from the plan, then take all steps that are left."""
    spec, dtype = run.spec.training, getattr(torch, run.spec.training.dtype)
    memory = PeakMemory(run.device)
    memory.start()
    model = build_model(run.spec.model, num_features=dataset.num_features, num_classes=dataset.num_classes)
    learn_degrees(model, degrees_of(graph))
    if (table := table_of(model)) is not None:
        table.fill(graph.num_nodes)
    model = model.to(run.device, dtype)
    optimizer = build_optimizer(model, spec=spec, decayed=every_parameter)
    roster = None
    if run.plan.sync.outlives_replicas(num_ranks=run.world_size):
        store = run.store or axis.fresh_store()
        roster = Roster(store, rank=run.rank, size=run.world_size, max_silence_s=run.max_silence_s)
    together = axis if roster is None else Axis()  # who may lose the others does nothing that only all can do
    with (
        open_features(graph, plan=run.plan, axis=axis, device=run.device, address=run.address) as features,
        open_exchange(run.plan.sync, model, optimizer=optimizer, axis=axis, roster=roster) as exchange,
    ):
        return _train_with(
            with_table(exchange, model, axis=together),
            run=run,
            dataset=dataset,
            features=features,
            axis=together,
            model=model,
            optimizer=optimizer,
            memory=memory,
        )


def _train_with(
    exchange: Exchange,
    *,
    run: RankRun,
    dataset: GraphDataset,
    features: FeatureShares,
    axis: Axis,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    memory: PeakMemory,
) -> dict[str, float]:
    spec, dtype, graph = run.spec.training, getattr(torch, run.spec.training.dtype), features.graph
    objective = resolve_objective(spec, dataset)
    runs = runs_of(
        model,
        run.spec.model,
        graph,
        dataset=dataset,
        rank=run.rank,
        seed=spec.seed,
        device=run.device,
        dtype=dtype,
    )
    replica = ReplicaStep(
        model,
        optimizer=optimizer,
        loss=build_loss(objective),
        exchange=exchange,
        seed=spec.seed,
        forward=forward_of(dataset, pooling=run.spec.model.pooling, forward=runs.forward),
    )
    order = SeedOrder(
        train_nodes=rows_to_train(dataset),
        batch_size=run.plan.batch_size,
        seed=spec.seed,
        world_size=run.world_size,
        shares=exchange.shares,
        reuse=run.plan.cache.sampled_in,
    )
    subgraphs = SubgraphCache(max_bytes=run.plan.cache.subgraph_bytes) if run.plan.cache.reuses else None
    if run.samplers is not None and run.plan.sampling.is_remote:
        stages = _stages_elsewhere(run, run.samplers, order=order, graph=graph, reading=runs.reading)
    else:
        stages = build_stages(
            graph,
            order=order,
            rank=run.rank,
            device=run.device,
            dtype=dtype,
            num_sampling_workers=run.plan.num_sampling_workers,
            reading=runs.reading,
            subgraphs=subgraphs,
            preference=features.preference,
            draws=draws_of(dataset, graph),
            **sampling_of(run.spec.model, dataset),
        )
    pipeline = Pipeline(
        stages,
        budgets=run.plan.queues,
        pipelined=run.plan.pipelined,
        hang_limit_s=run.max_stage_silence_s,
        give_up=run.give_up,
    )
    progress = ProgressMeter(
        pipeline, exchange=exchange, caches=lambda: features.figures() | (subgraphs.figures() if subgraphs else {})
    )
    evaluator = runs.evaluator(with_learned_features(graph, model), axis=axis)
    score = scorer_of(dataset, evaluator=evaluator, objective=objective, axis=axis, pooling=run.spec.model.pooling)
    milestones = Milestones(
        run,
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        objective=objective,
        steps_per_epoch=order.steps_per_epoch,
        evaluate=partial(score, model),
        axis=axis,
        meter=progress,
        memory=memory,
        replicas=exchange,
    )
    return _take_all_steps(
        run, order=order, pipeline=pipeline, replica=replica, progress=progress, milestones=milestones
    )


def _stages_elsewhere(
    run: RankRun, samplers: RemoteCalls, *, order: SeedOrder, graph: Graph, reading: Reading
) -> tuple[Stage, ...]:
    """The stages where actors sample and prepare."""
    asker = Asker(
        samplers,
        order=order,
        rank=run.rank,
        reading=reading,
        in_place=None if reading == "gathered" else in_place_of(graph),
        hang_limit_s=run.max_stage_silence_s,
    )
    return (asker.stage(num_ahead=run.plan.num_sampling_workers), *transfer_stages(run.device))


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
    if milestones.is_over(start):
        return milestones.finish_again(start)
    values: dict[str, float] = {}
    with pipeline.run(order.tasks(start, total_steps)) as batches:
        watch = Stopwatch()
        for step, batch in enumerate(batches, start + 1):
            run.progress.begin_step(step)
            _take_step(run, step=step, batch=batch, replica=replica, progress=progress, watch=watch)
            values = milestones.after_step(step, first=step == start + 1)
            if milestones.is_over(step):
                break
            watch.lap()  # what the milestones took is not part of the next step
    return values


def _take_step(
    run: RankRun, *, step: int, batch: MiniBatch, replica: ReplicaStep, progress: ProgressMeter, watch: Stopwatch
) -> None:
    wait_s = watch.lap()
    share = replica.compute(batch)
    compute_s = watch.lap()
    loss = sum_shares(replica.exchange(share), ranks=range(run.world_size), step=step)
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
