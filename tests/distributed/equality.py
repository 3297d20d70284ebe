"""Both sides of every equality claim: the dense model in one process, and the parallel one on the ranks of a pool."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from planner.plan import MegaGraphPlan, Stage
from planner.schedule import actions_by_rank, one_f_one_b_actions
from workers.comm.mesh import build_mesh
from workers.data.graph import GraphDataset
from workers.megagraph.batches import ShardedBatches
from workers.megagraph.data_parallel import GraphDealer
from workers.megagraph.parallelize import parallelize
from workers.megagraph.training_step import run_step
from workers.models.graph_batch import GraphBatch
from workers.models.graphormer import Attention, Graphormer
from workers.ops.counter_dropout import draw_of
from workers.spec import GraphormerSpec

Name = TypeVar("Name")
SPEC = GraphormerSpec(
    num_layers=2, hidden_size=8, num_heads=2, max_distance=3, ffn_ratio=1.5, dropout=0.0, input_dropout=0.0
)


@dataclass(frozen=True)
class Case:
    """What to train, and how it is spread. ``batch_size`` graphs per step; ``steps`` updates by Adam."""

    dataset: GraphDataset
    cp: int = 1
    dp: int = 1
    num_micro_batches: int = 1
    recompute: tuple[str, ...] = ()
    spec: GraphormerSpec = SPEC
    dtype: torch.dtype = torch.float64
    batch_size: int = 100
    steps: int = 1

    @property
    def world_size(self) -> int:
        return self.cp * self.dp


@dataclass(frozen=True)
class Outcome:
    """What one rank (or the one process) ends with. ``logits[graph]`` are of its own rows, before any update."""

    losses: list[float]
    logits: dict[int, Tensor]
    gradients: dict[str, Tensor]  # of the first step
    parameters: dict[str, Tensor] = field(default_factory=dict)  # after all steps


def plan_of(case: Case) -> MegaGraphPlan:
    """The plan that ``case`` describes."""
    stage = Stage(
        units=case.spec.units,
        ranks=tuple(range(case.world_size)),
        dp_degree=case.dp,
        cp_degree=case.cp,
        exchange="ring" if case.cp > 1 else "none",
    )
    return MegaGraphPlan(
        world_size=case.world_size,
        stages=(stage,),
        num_micro_batches=case.num_micro_batches,
        actions=actions_by_rank((stage,), one_f_one_b_actions(num_stages=1, num_micro_batches=case.num_micro_batches)),
        recompute=case.recompute,
    )


def build(case: Case) -> Graphormer:
    """The model that every side starts from. The bias table is made uneven, so that a wrong bucket shows."""
    torch.manual_seed(5)
    model = Graphormer(case.spec, num_features=case.dataset.num_features, num_classes=case.dataset.num_classes)
    with torch.no_grad():
        model.distance.table.normal_()
    return model.to(case.dtype)


def run_parallel(rank: int, world_size: int, case: Case) -> Outcome:
    """One rank's side of ``case``, through the runtime's own parts."""
    return _run(rank, case, model=build(case))


def run_dense(case: Case) -> Outcome:
    """``case`` in one process, with every score materialised: the reference."""
    alone = replace(case, cp=1, dp=1, num_micro_batches=1, recompute=())
    return _run(0, alone, model=dense(build(alone)))


def dense(model: Graphormer) -> Graphormer:
    """``model`` with attention in its textbook form: softmax(q k^T / sqrt(d_h) + table[bucket]) v, graph by graph."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = partial(_dense_attention, module)
    return model


def gather_rows(outcomes: Sequence[Outcome], *, case: Case) -> dict[int, Tensor]:
    """The logits of every graph, put together from the shards of one replica (all replicas hold the same)."""
    shards = outcomes[: case.cp]
    return {graph: torch.cat([shard.logits[graph] for shard in shards]) for graph in shards[0].logits}


def relative_errors(values: Mapping[Name, Tensor], *, exact: Mapping[Name, Tensor]) -> dict[Name, float]:
    """Per tensor: ||value - exact|| / max(||exact||, 1e-3 * median ||exact||), in float64."""
    norms = {name: float(tensor.double().norm()) for name, tensor in exact.items()}
    floor = 1e-3 * statistics.median(norms.values())
    return {
        name: float((values[name].double() - tensor.double()).norm()) / max(norms[name], floor)
        for name, tensor in exact.items()
    }


def _run(rank: int, case: Case, *, model: Graphormer) -> Outcome:
    plan = plan_of(case)
    mesh = build_mesh(plan.stages[0], rank=rank)
    parallelize(model, plan=plan, mesh=mesh)
    batches = ShardedBatches(
        case.dataset,
        axis=mesh.cp,
        needs=case.spec.needs,
        dtype=case.dtype,
        device=torch.device("cpu"),
    )
    dealer = GraphDealer(
        case.dataset,
        batch_size=case.batch_size,
        seed=3,
        replica=mesh.dp.index,
        num_replicas=mesh.dp.size,
        num_micro_batches=case.num_micro_batches,
    )
    with torch.no_grad():
        model.eval()
        graphs = range(len(case.dataset.graphs))
        logits = {graph: model(batches.batch((graph,), draw=0).inputs) for graph in graphs}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses, gradients = [], {}
    shares = [share for epoch in range(case.steps) for share in dealer.epoch(epoch)][: case.steps]
    for step, share in enumerate(shares, 1):
        losses.append(
            run_step(
                model,
                optimizer=optimizer,
                batches=batches,
                share=share,
                actions=plan.actions[rank],
                mesh=mesh,
                step=step,
                draw=draw_of(9, step),
            )
        )
        gradients = gradients or {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    parameters = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return Outcome(losses=losses, logits=logits, gradients=gradients, parameters=parameters)


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
