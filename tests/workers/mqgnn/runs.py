"""Training runs put together by hand, without data set, plan or disk: what tests compare with each other."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from planner.plan import QueueBudget
from planner.sync import SyncRule
from tests.kit.objectives import CROSS_ENTROPY
from workers.comm.axis import Axis
from workers.data.graph import TRAIN, Graph
from workers.model_specs.sampled import SamplerName, TypeNames
from workers.models.node_table import table_of
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.exchange import Exchange
from workers.mqgnn.graph_versions import ChangingGraph
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages, choose_reading
from workers.mqgnn.seed_order import SampledIn, SeedOrder
from workers.mqgnn.subgraph_cache import SubgraphCache
from workers.mqgnn.sync_rules import open_exchange
from workers.mqgnn.table_exchange import with_table
from workers.spec import SPEC_OF_MODEL, TrainingSpec
from workers.training.optimizer import build_optimizer, every_parameter

ALONE = Axis()
CPU = torch.device("cpu")
DDP = SyncRule()
BUDGETS = (
    QueueBudget(name="sample", max_items=3, max_bytes=2**20),
    QueueBudget(name="prepare", max_items=2, max_bytes=2**20),
)


@dataclass(frozen=True)
class Settings:
    """One run; the defaults are the serial run of one process."""

    model: str = "graphsage"
    fanouts: tuple[int, ...] = (3, 2)
    batch_size: int = 32
    epochs: int = 2
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64
    seed: int = 0
    pipelined: bool = False
    num_sampling_workers: int = 1
    sampler: SamplerName = "uniform"
    disjoint: bool = False
    temporal: bool = False
    types: TypeNames | None = None
    in_place: bool = False
    sync: SyncRule = DDP
    learning_rate: float = 0.01
    node_embedding_size: int = 0
    slowness: tuple[int, ...] = ()  # how often each replica computes a step
    reuse: SampledIn | None = None


def train_by_hand(
    graph: Graph | ChangingGraph,
    settings: Settings,
    *,
    axis: Axis = ALONE,
    watch: Callable[[Exchange, MiniBatch], None] | None = None,
    subgraphs: SubgraphCache | None = None,
) -> tuple[dict[str, Tensor], list[float]]:
    """(weights at the end, loss of every step) of one replica; ``watch`` looks at each step after its update."""
    torch.manual_seed(settings.seed)
    stored = graph.now.graph if isinstance(graph, ChangingGraph) else graph
    kind = SPEC_OF_MODEL[settings.model]
    options = {"hetero": True, "types": settings.types} if settings.types else {}
    spec = kind(
        name=settings.model,
        hidden_size=16,
        dropout=settings.dropout,
        fanouts=settings.fanouts,
        node_embedding_size=settings.node_embedding_size,
        **options,
    )
    model = build_sampled_gnn(spec, num_features=stored.features.num_features, num_classes=int(stored.y.max()) + 1).to(
        settings.dtype
    )
    if (table := table_of(model)) is not None:
        table.fill(stored.num_nodes)
    training = TrainingSpec(learning_rate=settings.learning_rate)
    optimizer = build_optimizer(model, spec=training, decayed=every_parameter)
    losses = []
    with open_exchange(settings.sync, model, optimizer=optimizer, axis=axis) as inner:
        exchange = with_table(inner, model, axis=axis)
        order = SeedOrder(
            np.flatnonzero(stored.split == TRAIN),
            settings.batch_size,
            settings.seed,
            world_size=axis.size,
            shares=exchange.shares,
            reuse=settings.reuse,
        )
        stages = build_stages(
            graph,
            order=order,
            fanouts=settings.fanouts,
            rank=axis.index,
            device=CPU,
            dtype=settings.dtype,
            num_sampling_workers=settings.num_sampling_workers,
            sampler=settings.sampler,
            disjoint=settings.disjoint,
            temporal=settings.temporal,
            types=settings.types,
            reading=choose_reading(model, stored, device=CPU, dtype=settings.dtype)
            if settings.in_place
            else "gathered",
            subgraphs=subgraphs,
        )
        replica = ReplicaStep(model, optimizer=optimizer, loss=CROSS_ENTROPY, exchange=exchange, seed=settings.seed)
        pipeline = Pipeline(stages, budgets=BUDGETS, pipelined=settings.pipelined)
        with pipeline.run(order.tasks(0, settings.epochs * order.steps_per_epoch)) as batches:
            for batch in batches:
                for _ in range(settings.slowness[axis.index] if settings.slowness else 1):
                    loss = replica.compute(batch)
                losses.append(sum(replica.exchange(loss)))
                replica.update()
                if watch is not None:
                    watch(exchange, batch)
        exchange.agree()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, losses
