"""What the ``megagraph_*`` benchmarks compare: training steps of one Graphormer on one graph, ours and the baselines'.

All sides run through the runtime's own parts, with the same numbers, and differ in attention alone: ours, or dense
PyTorch (``tests.benchmarks.baselines.dense_attention``), which on one rank is the plain model and on several Ulysses in
the way of TorchGT. Distances are drawn, not searched for, so that no side is told by its breadth-first search.
"""

import statistics
import time
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch

from tests.benchmarks.baselines.dense_attention import FORMS, apply_dense_attention
from tests.benchmarks.power_law_graph import power_law_edges
from tests.distributed.equality import Case, build, plan_of, spread
from tests.distributed.odd_graphs import build_graph, build_set, random_edges
from tests.kit.gloo_pool import GlooPool
from tests.kit.objectives import CROSS_ENTROPY
from workers.comm.ulysses import HeadShards
from workers.data.edges import targets_of
from workers.data.graph import Graph
from workers.megagraph import encoded_rows
from workers.megagraph.training_step import run_step
from workers.model_specs.transformers import IndexForm
from workers.ops.heads import AllHeads
from workers.spec import GraphormerSpec, TrainingSpec
from workers.training.memory import PeakMemory
from workers.training.optimizer import build_optimizer, weight_matrices

LONGEST_RUN_S = 1800.0  # a step of the largest graphs takes minutes


@dataclass(frozen=True)
class Size:
    """The graph and the model. ``max_distance`` 14 makes 16 buckets.

    With ``index`` ``near_pairs`` the graph has skewed degrees, and its distances are searched for, not drawn.
    """

    num_nodes: int = 4096
    num_layers: int = 4
    hidden_size: int = 128
    num_heads: int = 8
    max_distance: int = 14
    index: IndexForm = "dense"

    @property
    def spec(self) -> GraphormerSpec:
        """Without dropout: it would cost every side the same."""
        names = ("num_layers", "hidden_size", "num_heads", "max_distance", "index")
        fields = {name: getattr(self, name) for name in names}
        return GraphormerSpec(**fields, dropout=0.0, input_dropout=0.0)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """About four edges for each node."""
        if self.index == "dense":
            return random_edges(self.num_nodes, 4 * self.num_nodes, seed=0)
        indptr, indices = power_law_edges(self.num_nodes, num_edges=8 * self.num_nodes)
        return np.stack([indices, targets_of(indptr)], axis=1).tolist()


@dataclass(frozen=True)
class Side:
    """Ours by ``exchange``, or a baseline by the ``dense`` form that it attends in."""

    num_ranks: int
    exchange: str = "ring"
    dense: str | None = None
    num_threads: int = 1  # of each rank


def dense_sides(num_ranks: int, *, num_threads: int = 1) -> dict[str, Side]:
    """The baseline in each of its forms."""
    return {form: Side(num_ranks, dense=form, num_threads=num_threads) for form in FORMS}


@dataclass(frozen=True)
class Measured:
    """``losses`` before the first step and after each but the last; ``seconds`` of each step but the first."""

    losses: list[float]
    seconds: list[float]
    peak_bytes: int

    @property
    def step_s(self) -> float:
        """The median step after the first, which fetches memory and cuts the graph."""
        return statistics.median(self.seconds)


def measure_side(pool: GlooPool, side: Side, size: Size, *, num_steps: int) -> Measured:
    """``num_steps`` training steps of ``side``; the slowest and the largest of its ranks."""
    by_rank: list[Measured] = pool.run(train, side, size, num_steps, world_size=side.num_ranks, timeout_s=LONGEST_RUN_S)
    return Measured(
        losses=by_rank[0].losses,
        seconds=[max(steps) for steps in zip(*(rank.seconds for rank in by_rank), strict=True)],
        peak_bytes=max(rank.peak_bytes for rank in by_rank),
    )


def peak_bytes(side: Side, size: Size, *, num_steps: int = 2) -> int:
    """The highest point of a rank in some steps, over what it held before the model was built; in fresh processes."""
    with GlooPool(side.num_ranks) as pool:
        return measure_side(pool, side, size, num_steps=num_steps).peak_bytes


def train(rank: int, world_size: int, side: Side, size: Size, num_steps: int) -> Measured:
    """One rank's part. Everything is used in small first: libraries, connections, buffers are no side's cost."""
    torch.set_num_threads(side.num_threads)
    meter = PeakMemory()
    _train(rank, side, Size(num_nodes=64, index=size.index), num_steps=1)
    meter.start()
    losses, seconds = _train(rank, side, size, num_steps=num_steps)
    return Measured(losses, seconds[1:], meter.peak_bytes())


def _train(rank: int, side: Side, size: Size, *, num_steps: int) -> tuple[list[float], list[float]]:
    graph = build_graph(size.num_nodes, size.edges, seed=0)
    case = Case(
        build_set([graph]),
        spec=size.spec,
        cp=side.num_ranks,
        exchange=side.exchange,
        ulysses=side.num_ranks if side.exchange == "ulysses" else 1,
        dtype=torch.float32,
    )
    model, plan = build(case), plan_of(case)
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    if side.dense is not None:
        heads = HeadShards(parallel.meshes[0].cp) if side.num_ranks > 1 else AllHeads()
        apply_dense_attention(model, form=side.dense, heads=heads)
    optimizer = build_optimizer(model, spec=TrainingSpec(), decayed=weight_matrices)
    (share,) = dealer.epoch(1)
    losses, seconds = [], []
    with patch.object(encoded_rows, "distance_buckets", drawn_buckets):
        parallel.executor.prepare(share.micro_batches)
    for step in range(1, num_steps + 1):
        parallel.world.barrier()
        started = time.perf_counter()
        losses.append(
            run_step(
                parallel,
                optimizer=optimizer,
                loss=CROSS_ENTROPY,
                share=share,
                actions=plan.actions[rank],
                step=step,
                draw=step,
            )
        )
        seconds.append(time.perf_counter() - started)
    parallel.close()
    return losses, seconds


def drawn_buckets(graph: Graph, *, rows: np.ndarray, max_distance: int, **_: object) -> np.ndarray:
    """In place of ``distance_buckets``: every row drawn by its own number, so all sides see the same."""
    buckets = np.empty((len(rows), graph.num_nodes), dtype=np.uint8)
    for row, node in zip(buckets, rows, strict=True):
        row[:] = np.random.default_rng(int(node)).integers(max_distance + 2, size=graph.num_nodes, dtype=np.uint8)
    return buckets
