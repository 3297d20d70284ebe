"""Both sides of every claim: a case on the ranks of a pool, through the runtime, and by hand with the plain module.

The one process takes from the runtime nothing but which graphs a step has and the rows of whole graphs: it calls the
module, with textbook attention in place of the tiled one, on the global batch, and torch's own loss, clipping and Adam.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, count, islice

import torch
from torch import Tensor, nn

from planner.plan import MegaGraphPlan
from tests.distributed.equality.cases import Case, plan_of
from tests.kit.objectives import CROSS_ENTROPY
from workers.comm.axis import Axis
from workers.data.graph import NO_LABEL, TRAIN
from workers.data.partition import NodeCuts
from workers.megagraph.batches import LabelledBatch, ShardedBatches
from workers.megagraph.data_parallel import GlobalStep, GraphDealer
from workers.megagraph.dealing import Dealing
from workers.megagraph.executor import Round
from workers.megagraph.parallelize import ParallelModel, check_runnable, parallelize
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import run_step
from workers.models.attention import Attention
from workers.models.graph_batch import GraphBatch
from workers.models.registry import build_model
from workers.models.units import GraphTransformer
from workers.ops.counter_dropout import draw_of
from workers.spec import TrainingSpec
from workers.training.optimizer import build_optimizer
from workers.training.state import whole_tensor

LEARNING_RATE = 1e-2
_SEED = 9  # of dropout
_UNEVEN = ("distance.table", "kinds")  # tables that start even or zero


@dataclass(frozen=True)
class Outcome:
    """What one rank (or the one process) ends with, of the parameters that it holds.

    ``logits[graph]`` are predictions before any update, of the rows ``places[graph]`` of the graph, or of the graph as
    a whole; only the last stage has some.
    """

    losses: list[float]
    logits: dict[int, Tensor]
    places: dict[int, Tensor]
    gradients: dict[str, Tensor]  # of the first step, clipped
    parameters: dict[str, Tensor] = field(default_factory=dict)  # after all steps, with what the model counts


def build(case: Case) -> GraphTransformer:
    """The model that every side starts from. Tables of biases are made uneven, so that a wrong entry shows."""
    torch.manual_seed(5)
    model = build_model(case.spec, num_features=case.dataset.num_features, num_classes=case.dataset.num_classes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(_UNEVEN):
                parameter.normal_()
    return model.to(case.dtype)


def run_parallel(rank: int, world_size: int, case: Case) -> Outcome:
    """One rank's side of ``case``, through the runtime's own parts."""
    model, plan = build(case), plan_of(case)
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    model.eval()
    alone = [(graph,) for graph in range(len(case.dataset.graphs))]
    predicted = parallel.executor.predict(Round(alone, draw=0))
    held = {graph: found for graph, found in enumerate(predicted) if found[1].inputs.layout.num_graphs}
    own = own_parameters(model)
    optimizer = build_optimizer(
        model,
        spec=TrainingSpec(learning_rate=LEARNING_RATE, weight_decay=0.0, clip_norm=case.clip_norm),
        decayed=lambda _: (),
        gradient_norm=partial(parallel.gradients.norm, over=parallel.world),
    )
    losses, gradients = [], {}
    for step, share in _steps(case, dealer):
        losses.append(
            run_step(
                parallel,
                optimizer=optimizer,
                loss=CROSS_ENTROPY,
                share=share,
                actions=plan.actions[rank],
                step=step,
                draw=draw_of(_SEED, step),
            )
        )
        gradients = gradients or {name: whole_tensor(parameter.grad).clone() for name, parameter in own.items()}
    learned = {name: whole_tensor(tensor).clone() for name, tensor in (own | _counted(model)).items()}
    parallel.close()
    return _outcome(case, losses, held, gradients=gradients, learned=learned)


def run_alone(case: Case) -> Outcome:
    """``case`` in one process, by hand: the expected result."""
    model = textbook(build(case))
    rows = ShardedBatches(
        case.dataset, axis=Axis(), needs=case.spec.needs, dtype=case.dtype, device=torch.device("cpu")
    )
    model.eval()
    with torch.no_grad():
        batches = {graph: rows.batch((graph,), draw=0) for graph in range(len(case.dataset.graphs))}
        held = {graph: (model(batch.inputs), batch) for graph, batch in batches.items()}
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    losses, gradients = [], {}
    for step, share in _steps(case, _dealer(case)):
        optimizer.zero_grad()
        losses.append(0.0)
        for graphs in _together(share, model):
            batch = rows.batch(graphs, draw=draw_of(_SEED, step))
            trained = batch.split == TRAIN
            rows_loss = nn.functional.cross_entropy(
                model(batch.inputs)[trained], batch.y[trained], ignore_index=NO_LABEL, reduction="sum"
            )
            (rows_loss / share.num_targets).backward()
            losses[-1] += float(rows_loss.detach()) / share.num_targets
        if case.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        gradients = gradients or {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in own_parameters(model).items()
        }
        optimizer.step()
    learned = {name: parameter.detach() for name, parameter in own_parameters(model).items()} | _counted(model)
    return _outcome(case, losses, held, gradients=gradients, learned=learned)


def spread(case: Case, *, rank: int, model: GraphTransformer, plan: MegaGraphPlan) -> tuple[ParallelModel, GraphDealer]:
    """``model`` as ``plan`` spreads it, and the dealer of the graphs of ``case``."""
    check_runnable(plan, units=tuple(model.units()))
    dealer = _dealer(case)
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


def textbook(model: GraphTransformer) -> GraphTransformer:
    """``model`` with attention in its textbook form: softmax(q k^T / sqrt(d_h) + bias) v, graph by graph."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.forward = partial(_attend, module)
    return model


def _dealer(case: Case) -> GraphDealer:
    return GraphDealer(case.dataset, batch_size=case.batch_size, seed=3, num_micro_batches=case.num_micro_batches)


def _steps(case: Case, dealer: GraphDealer) -> Iterator[tuple[int, GlobalStep]]:
    """Number (from 1) and share of the steps of ``case``."""
    shares = (share for epoch in count() for share in dealer.epoch(epoch))
    return enumerate(islice(shares, case.steps), 1)


def _together(share: GlobalStep, model: nn.Module) -> tuple[tuple[int, ...], ...]:
    """The graphs of a step at once, unless the model looks at whole micro-batches: then those with rows."""
    if any(hasattr(module, "batch_sums") for module in model.modules()):
        return tuple(graphs for graphs in share.micro_batches if graphs)
    return (tuple(graph for graphs in share.micro_batches for graph in graphs),)


def _counted(model: nn.Module) -> dict[str, Tensor]:
    """Running statistics that lie here."""
    return {name: buffer for name, buffer in model.named_buffers() if not buffer.is_meta}


def _outcome(
    case: Case,
    losses: list[float],
    held: Mapping[int, tuple[Tensor, LabelledBatch]],
    *,
    gradients: dict[str, Tensor],
    learned: dict[str, Tensor],
) -> Outcome:
    first_ids = [*accumulate((graph.num_nodes for graph in case.dataset.graphs), initial=0)]
    whole = case.dataset.level == "graph"
    return Outcome(
        losses=losses,
        logits={graph: rows for graph, (rows, _) in held.items()},
        places={
            graph: torch.zeros(1, dtype=torch.int64) if whole else batch.inputs.node_ids - first_ids[graph]
            for graph, (_, batch) in held.items()
        },
        gradients=gradients,
        parameters=learned,
    )


def _attend(attention: Attention, h: Tensor, *, batch: GraphBatch) -> Tensor:
    q, k, v = (
        linear(h).unflatten(1, (attention.num_heads, -1))
        for linear in (attention.query, attention.key, attention.value)
    )
    parts = [q[:0]]
    for graph, buckets in enumerate(batch.buckets):
        rows = batch.layout.rows(0, graph)
        bias = attention.distance.table[:, buckets.long()]
        if attention.edge_path is not None:
            bias = bias + _along_paths(attention.edge_path.table, batch.paths[graph])
        scores = torch.einsum("ihd,jhd->hij", q[rows], k[rows]) / math.sqrt(q.shape[2]) + bias
        parts.append(torch.einsum("hij,jhd->ihd", scores.softmax(dim=2), v[rows]))
    return attention.out(torch.cat(parts).flatten(1))


def _along_paths(table: Tensor, paths: Tensor) -> Tensor:
    """[H, n, N]: the mean of ``table[position, type]`` over the edges of each pair's path, 0 where there is none."""
    is_edge = (paths > 0).unsqueeze(3)
    weights = table[torch.arange(len(table)), paths.long().sub(1).clamp(min=0)]  # [n, N, positions, H]
    return ((weights * is_edge).sum(dim=2) / is_edge.sum(dim=2).clamp(min=1)).permute(2, 0, 1)
