"""Both sides of every equality claim: the dense model in one process, and the parallel one on the ranks of a pool."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from planner.plan import MegaGraphPlan, Partition, Stage
from planner.schedule import (
    actions_by_rank,
    gpipe_actions,
    interleaved_actions,
    one_f_one_b_actions,
    zero_bubble_actions,
)
from tests.distributed.edge_model import EdgeSpec, EdgeTransformer
from tests.kit.objectives import CROSS_ENTROPY
from workers.data.graph import GraphDataset
from workers.data.partition import NATURAL, NodeCuts
from workers.megagraph.batches import ShardedBatches
from workers.megagraph.data_parallel import GraphDealer
from workers.megagraph.dealing import Dealing
from workers.megagraph.executor import Round
from workers.megagraph.parallelize import ParallelModel, check_runnable, parallelize
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import run_step
from workers.model_specs import TransformerSpec
from workers.models.attention import Attention
from workers.models.graph_batch import GraphBatch
from workers.models.registry import build_model
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import draw_of
from workers.spec import GraphormerSpec, TrainingSpec
from workers.training.optimizer import build_optimizer
from workers.training.state import whole_tensor

Name = TypeVar("Name")
SPEC = GraphormerSpec(
    num_layers=2, hidden_size=8, num_heads=2, max_distance=3, ffn_ratio=1.5, dropout=0.0, input_dropout=0.0
)
SCHEDULES = {"gpipe": gpipe_actions, "1f1b": one_f_one_b_actions, "zero_bubble": zero_bubble_actions}


@dataclass(frozen=True)
class Width:
    """One stage: how many units it takes, its degrees, and its exchange, by default the ring."""

    units: int
    dp: int = 1
    cp: int = 1
    exchange: str = "ring"
    ulysses: int = 1


@dataclass(frozen=True)
class Case:
    """What to train, and how it is spread. ``batch_size`` graphs per step; ``steps`` updates by Adam.

    ``cp`` x ``dp`` ranks hold the whole model, unless ``stages`` says what each stage holds; the groups of ranks then
    serve ``stages_per_group`` of them in turn.
    """

    dataset: GraphDataset
    cp: int = 1
    dp: int = 1
    exchange: str = "ring"
    ulysses: int = 1
    partition: Partition = NATURAL
    stages: tuple[Width, ...] = ()
    stages_per_group: int = 1
    schedule: str = "1f1b"
    num_micro_batches: int = 1
    recompute: tuple[str, ...] = ()
    bias: str = "rebuild"
    sharded: tuple[str, ...] = ()
    shard_degree: int | None = None
    clip_norm: float | None = None
    spec: TransformerSpec | EdgeSpec = SPEC
    dtype: torch.dtype = torch.float64
    batch_size: int = 100
    steps: int = 1

    @property
    def widths(self) -> tuple[Width, ...]:
        return self.stages or (
            Width(len(self.spec.units), dp=self.dp, cp=self.cp, exchange=self.exchange, ulysses=self.ulysses),
        )

    @property
    def num_groups(self) -> int:
        return len(self.widths) // self.stages_per_group

    @property
    def world_size(self) -> int:
        return sum(width.dp * width.cp for width in self.widths[: self.num_groups])


@dataclass(frozen=True)
class Outcome:
    """What one rank (or the one process) ends with, of the parameters that it holds.

    ``logits[graph]`` are of its own rows, ``node_ids[graph]``, before any update; only the last stage has some.
    """

    losses: list[float]
    logits: dict[int, Tensor]
    node_ids: dict[int, Tensor]
    gradients: dict[str, Tensor]  # of the first step
    parameters: dict[str, Tensor] = field(default_factory=dict)  # after all steps


def plan_of(case: Case) -> MegaGraphPlan:
    """The plan that ``case`` describes."""
    names = case.spec.units
    stages: list[Stage] = []
    for index, width in enumerate(case.widths):
        first = sum(other.dp * other.cp for other in case.widths[: index % case.num_groups])
        taken = sum(other.units for other in case.widths[:index])
        stages.append(
            Stage(
                units=names[taken : taken + width.units],
                ranks=tuple(range(first, first + width.dp * width.cp)),
                dp_degree=width.dp,
                cp_degree=width.cp,
                exchange=width.exchange if width.cp > 1 else "none",
                ulysses_degree=width.ulysses,
            )
        )
    if case.stages_per_group > 1:
        actions = interleaved_actions(
            num_groups=case.num_groups,
            stages_per_group=case.stages_per_group,
            num_micro_batches=case.num_micro_batches,
        )
    else:
        actions = SCHEDULES[case.schedule](num_stages=len(stages), num_micro_batches=case.num_micro_batches)
    return MegaGraphPlan(
        world_size=case.world_size,
        stages=tuple(stages),
        num_micro_batches=case.num_micro_batches,
        actions=actions_by_rank(stages, actions),
        recompute=case.recompute,
        bias=case.bias,
        sharded=case.sharded,
        shard_degree=case.shard_degree,
        partition=case.partition,
    )


def build(case: Case) -> GraphTransformer:
    """The model that every side starts from. The bias table is made uneven, so that a wrong bucket shows."""
    torch.manual_seed(5)
    if isinstance(case.spec, EdgeSpec):
        return EdgeTransformer(case.spec).to(case.dtype)
    model = build_model(case.spec, num_features=case.dataset.num_features, num_classes=case.dataset.num_classes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "distance.table":
                parameter.normal_()
    return model.to(case.dtype)


def run_parallel(rank: int, world_size: int, case: Case) -> Outcome:
    """One rank's side of ``case``, through the runtime's own parts."""
    return _run(rank, case, model=build(case))


def run_dense(case: Case) -> Outcome:
    """``case`` in one process, with every score materialised: the reference."""
    alone = replace(
        case,
        cp=1,
        dp=1,
        ulysses=1,
        partition=NATURAL,
        stages=(),
        stages_per_group=1,
        schedule="1f1b",
        num_micro_batches=1,
        recompute=(),
        sharded=(),
        shard_degree=None,
    )
    return _run(0, alone, model=dense(build(alone)))


def dense(model: GraphTransformer) -> GraphTransformer:
    """``model`` with attention in its textbook form: softmax(q k^T / sqrt(d_h) + table[bucket]) v, graph by graph."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = partial(_dense_attention, module)
    return model


def gather_rows(outcomes: Sequence[Outcome]) -> dict[int, Tensor]:
    """The logits of every graph in the order of its nodes, put together from the shards of the replica that held it."""
    graphs = sorted({graph for outcome in outcomes for graph in outcome.logits})
    gathered = {}
    for graph in graphs:
        holders = [outcome for outcome in outcomes if graph in outcome.logits]
        node_ids = torch.cat([outcome.node_ids[graph] for outcome in holders])
        gathered[graph] = torch.cat([outcome.logits[graph] for outcome in holders])[node_ids.argsort()]
    return gathered


def relative_errors(values: Mapping[Name, Tensor], *, exact: Mapping[Name, Tensor]) -> dict[Name, float]:
    """Per tensor: ||value - exact|| / max(||exact||, 1e-3 * median ||exact||), in float64."""
    norms = {name: float(tensor.double().norm()) for name, tensor in exact.items()}
    floor = 1e-3 * statistics.median(norms.values())
    return {
        name: float((values[name].double() - tensor.double()).norm()) / max(norms[name], floor)
        for name, tensor in exact.items()
        if name in values
    }


def spread(case: Case, *, rank: int, model: GraphTransformer, plan: MegaGraphPlan) -> tuple[ParallelModel, GraphDealer]:
    """``model`` as ``plan`` spreads it, and the dealer of the graphs of ``case``."""
    check_runnable(plan, units=tuple(model.units()))
    dealer = GraphDealer(case.dataset, batch_size=case.batch_size, seed=3, num_micro_batches=case.num_micro_batches)
    cuts = NodeCuts(case.dataset.graphs, partition=plan.partition, num_parts=plan.largest_cp_degree)
    dealing = Dealing(
        plan.stages,
        dealer=dealer,
        cut=lambda graph, num_shards: cuts.cut(graph, num_shards).sizes,
        rank=rank,
    )
    parallel = parallelize(
        model,
        plan=plan,
        rank=rank,
        dealing=dealing,
        batches=lambda mesh: ShardedBatches(
            case.dataset,
            axis=mesh.cp,
            cuts=cuts,
            ulysses_degree=mesh.ulysses.size,
            needs=case.spec.needs,
            dtype=case.dtype,
            device=torch.device("cpu"),
        ),
        row_width=case.spec.row_width,
    )
    return parallel, dealer


def _run(rank: int, case: Case, *, model: GraphTransformer) -> Outcome:
    plan = plan_of(case)
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    model.eval()
    alone = [(graph,) for graph in range(len(case.dataset.graphs))]
    predicted = parallel.executor.predict(Round(alone, draw=0))
    held = {
        graph: (rows, batch.inputs) for graph, (rows, batch) in enumerate(predicted) if batch.inputs.layout.num_graphs
    }
    own = own_parameters(model)
    optimizer = build_optimizer(
        model,
        spec=TrainingSpec(learning_rate=1e-2, weight_decay=0.0, clip_norm=case.clip_norm),
        decayed=lambda _: (),
        gradient_norm=partial(parallel.gradients.norm, over=parallel.world),
    )
    losses, gradients = [], {}
    shares = [share for epoch in range(case.steps) for share in dealer.epoch(epoch)][: case.steps]
    for step, share in enumerate(shares, 1):
        losses.append(
            run_step(
                parallel,
                optimizer=optimizer,
                loss=CROSS_ENTROPY,
                share=share,
                actions=plan.actions[rank],
                step=step,
                draw=draw_of(9, step),
            )
        )
        gradients = gradients or {name: whole_tensor(parameter.grad).clone() for name, parameter in own.items()}
    parameters = {name: whole_tensor(parameter).clone() for name, parameter in own.items()}
    parallel.close()
    return Outcome(
        losses=losses,
        logits={graph: rows for graph, (rows, _) in held.items()},
        node_ids={graph: inputs.node_ids for graph, (_, inputs) in held.items()},
        gradients=gradients,
        parameters=parameters,
    )


def _dense_attention(attention: Attention, h: Tensor, *, batch: GraphBatch) -> Tensor:
    q, k, v = (
        linear(h).unflatten(1, (attention.num_heads, -1))
        for linear in (attention.query, attention.key, attention.value)
    )
    parts, bias = [], attention.distance.table
    for graph, buckets in enumerate(batch.buckets):
        rows = batch.layout.rows(0, graph)
        scores = torch.einsum("ihd,jhd->hij", q[rows], k[rows]) / math.sqrt(q.shape[2]) + bias[:, buckets.long()]
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), v[rows]))
    return attention.out(torch.cat(parts).flatten(1))
