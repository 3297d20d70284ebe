"""Stages of units against an even split: a transformer whose embedding weighs as much as four blocks, on two ranks.

The embedding has three parts of 2, 1 and 1 blocks' work, then come four blocks. The even split puts the whole embedding
and two blocks into the first stage and two blocks into the second: 6 against 2. Ours places the parts: 4 and 4. With 16
micro-batches the even split takes (8 + 15 * 6) / (8 + 15 * 4) = 1.44 times as long by the rule sum + 15 * max, and 1.41
times as 1F1B plays it (F : B = 1 : 2): the limit.

Both sides run on two long-lived ranks of one core each. The simulator gets the seconds that the actions of the very
same runs took; its share of waiting is held against the measured one. On a busy machine the two ranks take the cores
from each other and from others, so the details also tell the speedup of the processor seconds that were spent, as the
simulator plays them. Four and eight ranks are simulated.
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from planner.cost.step_time import PlanCosts, StageCosts
from planner.plan import MegaGraphPlan, Stage
from planner.schedule import actions_by_rank, one_f_one_b_actions, zero_bubble_actions
from planner.simulate import simulate
from tests.benchmarks.frame import Outcome, main
from tests.distributed.equality import Case, spread
from tests.distributed.odd_graphs import build_graph, build_set, random_edges
from tests.kit.gloo_pool import GlooPool
from workers.megagraph.executor import Round
from workers.models.graph_batch import GraphBatch
from workers.models.graphormer import Block, Graphormer
from workers.spec import GraphormerSpec

NUM_MICRO_BATCHES = 16
NUM_NODES = 512
SPEC = GraphormerSpec(num_layers=4, hidden_size=64, num_heads=4, max_distance=4, dropout=0.0, input_dropout=0.0)
PARTS = {"edge_path": 2, "positional": 1, "laplacian": 1}  # what each weighs, in blocks
UNITS = ("features", "degree", "distance", *PARTS, *(f"block.{index}" for index in range(SPEC.num_layers)), "head")
EVEN, OURS = 8, 6  # how many of the units come first: the embedding with two blocks, or the embedding alone
ROUNDS = 7
SPEEDUP_BAR, BUBBLE_BAR = 1.25, 0.10


class Part(nn.Module):
    """A part of the embedding that weighs as much as some blocks, because it consists of them."""

    def __init__(self, weight: int, *, model: Graphormer) -> None:
        super().__init__()
        tables = {"distance": model.distance, "edge_path": None}
        self.blocks = nn.ModuleList(Block(SPEC, index=index, **tables) for index in range(weight))

    def forward(self, h: Tensor, *, batch: GraphBatch) -> Tensor:
        for block in self.blocks:
            h = block(h, batch=batch)
        return h


class Heavy(Graphormer):
    """Graphormer with a heavy embedding."""

    def __init__(self, *, num_features: int, num_classes: int) -> None:
        super().__init__(SPEC, num_features=num_features, num_classes=num_classes)
        self.parts = nn.ModuleList(Part(weight, model=self) for weight in PARTS.values())

    def units(self) -> dict[str, nn.Module]:
        features, degree, distance, *others = super().units().values()
        return dict(zip(UNITS, (features, degree, distance, *self.parts, *others), strict=True))


@dataclass(frozen=True)
class Played:
    """One step of one rank: seconds in all, in forward, and waiting for the neighbour; and of the processor."""

    seconds: float
    forward_s: float
    waiting_s: float
    processor_s: float


def plan_of(units_of_stages: Sequence[tuple[str, ...]]) -> MegaGraphPlan:
    """1F1B, one rank per stage."""
    stages = tuple(
        Stage(units=units, ranks=(rank,), dp_degree=1, cp_degree=1, exchange="none")
        for rank, units in enumerate(units_of_stages)
    )
    actions = one_f_one_b_actions(num_stages=len(stages), num_micro_batches=NUM_MICRO_BATCHES)
    return MegaGraphPlan(
        world_size=len(stages),
        stages=stages,
        num_micro_batches=NUM_MICRO_BATCHES,
        actions=actions_by_rank(stages, actions),
    )


def play_steps(rank: int, world_size: int, rounds: int) -> dict[str, list[Played]]:
    """Both sides in turn, ``rounds`` times after one that is not counted."""
    graphs = [
        build_graph(NUM_NODES, random_edges(NUM_NODES, 2 * NUM_NODES, seed=seed), seed=seed) for seed in range(16)
    ]
    case = Case(build_set(graphs), spec=SPEC, num_micro_batches=NUM_MICRO_BATCHES, dtype=torch.float32)
    steps, found = {}, {"even": [], "ours": []}
    for name, first in (("even", EVEN), ("ours", OURS)):
        torch.manual_seed(1)
        model = Heavy(num_features=case.dataset.num_features, num_classes=case.dataset.num_classes)
        steps[name] = _timed(rank, case, model=model, plan=plan_of((UNITS[:first], UNITS[first:])))
    for turn in range(rounds + 1):
        for name, step in steps.items():
            played = step()
            if turn:
                found[name].append(played)
    return found


def _timed(rank: int, case: Case, *, model: Heavy, plan: MegaGraphPlan) -> Callable[[], Played]:
    """A step that tells where its time went."""
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    executor, spent = parallel.executor, {"forward": 0.0, "waiting": 0.0}

    def clocked(name: str, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: Any, **options: Any) -> Tensor:
            started = time.perf_counter()
            result = call(*args, **options)
            spent[name] += time.perf_counter() - started
            return result

        return run

    executor.run_units = clocked("forward", executor.run_units)
    executor.links.receive = clocked("waiting", executor.links.receive)
    executor.settle = clocked("waiting", executor.settle)
    (share,) = dealer.epoch(1)

    def step() -> Played:
        model.zero_grad()
        spent.update(forward=0.0, waiting=0.0)
        parallel.world.barrier()
        started, processor_s = time.perf_counter(), time.process_time()
        executor.play(
            plan.actions[rank],
            work=Round(share.micro_batches, draw=0),
            loss=lambda logits, batch: nn.functional.cross_entropy(logits, batch.y),
        )
        return Played(
            seconds=time.perf_counter() - started,
            forward_s=spent["forward"],
            waiting_s=spent["waiting"],
            processor_s=time.process_time() - processor_s,
        )

    return step


def bubble(seconds: float, busy_s: Sequence[float]) -> float:
    """The share of all ranks' time in which they wait."""
    return 1 - sum(busy_s) / (len(busy_s) * seconds)


def simulated_s(plan: MegaGraphPlan, ranks: Sequence[Played], busy_s: Sequence[float]) -> float:
    """What the simulator says of a step whose ranks work for ``busy_s``, shared out to F and B as they were."""
    costs = []
    for played, busy in zip(ranks, busy_s, strict=True):
        forward_s = busy / NUM_MICRO_BATCHES * played.forward_s / (played.seconds - played.waiting_s)
        costs.append(StageCosts(forward={"f": forward_s}, backward={"b": busy / NUM_MICRO_BATCHES - forward_s}))
    return simulate(plan, PlanCosts(stages=tuple(costs))).step_time_s


def measure() -> Outcome:
    """Makespans of both splits, and how far the simulator's share of waiting is off."""
    with GlooPool(2) as pool:
        return compare_splits(pool.run(play_steps, ROUNDS, timeout_s=1200.0))


def compare_splits(by_rank: Sequence[dict[str, list[Played]]]) -> Outcome:
    """The figures of the steps that two ranks played."""
    seconds, undisturbed, errors = {}, {}, {}
    for name, first in (("even", EVEN), ("ours", OURS)):
        steps = list(zip(*(found[name] for found in by_rank), strict=True))
        plan = plan_of((UNITS[:first], UNITS[first:]))
        seconds[name] = [max(played.seconds for played in ranks) for ranks in steps]
        busy_s = [[played.seconds - played.waiting_s for played in ranks] for ranks in steps]
        measured = [bubble(max(p.seconds for p in ranks), busy) for ranks, busy in zip(steps, busy_s, strict=True)]
        simulated = [bubble(simulated_s(plan, ranks, busy), busy) for ranks, busy in zip(steps, busy_s, strict=True)]
        undisturbed[name] = statistics.median(
            simulated_s(plan, ranks, [played.processor_s for played in ranks]) for ranks in steps
        )
        errors[name] = {
            "measured": statistics.median(measured),
            "simulated": statistics.median(simulated),
            "error": statistics.median(abs(left - right) for left, right in zip(measured, simulated, strict=True)),
        }
    speedup = statistics.median(even / ours for even, ours in zip(seconds["even"], seconds["ours"], strict=True))
    error = max(found["error"] for found in errors.values())
    return Outcome(
        figures={"speedup_vs_even": speedup, "bubble_error": error},
        verdicts={"speedup_vs_even": speedup >= SPEEDUP_BAR, "bubble_error": error <= BUBBLE_BAR},
        details={
            "step_s": {name: statistics.median(found) for name, found in seconds.items()},
            "bubbles": errors,
            "speedup of processor seconds, simulated": undisturbed["even"] / undisturbed["ours"],
            "simulated": {f"{ranks} ranks": simulated_speedups(ranks) for ranks in (2, 4, 8)},
        },
    )


def simulated_speedups(num_ranks: int) -> dict[str, float]:
    """Against the even split, by schedule: the embedding of 2, 1, 1 and two blocks per rank, F = I = W."""
    blocks = [1] * (2 * num_ranks)
    even = [4 + 2, *[2] * (num_ranks - 1)]
    ours = best_split([2, 1, 1, *blocks], num_stages=num_ranks)
    base = simulated_step_s(even, zero_bubble=False)
    return {
        "1f1b": base / simulated_step_s(ours, zero_bubble=False),
        "zero bubble": base / simulated_step_s(ours, zero_bubble=True),
    }


def best_split(weights: Sequence[int], *, num_stages: int) -> list[int]:
    """The weights of the runs whose heaviest is lightest."""
    cuts = itertools.combinations(range(1, len(weights)), num_stages - 1)
    runs = ([sum(weights[a:b]) for a, b in itertools.pairwise((0, *cut, len(weights)))] for cut in cuts)
    return min(runs, key=max)


def simulated_step_s(weights: Sequence[int], *, zero_bubble: bool) -> float:
    """The makespan of stages of these weights."""
    plan = plan_of([(f"stage.{index}",) for index in range(len(weights))])
    if zero_bubble:
        actions = zero_bubble_actions(num_stages=len(weights), num_micro_batches=NUM_MICRO_BATCHES)
        plan = plan.model_copy(update={"actions": actions_by_rank(plan.stages, actions)})
    stages = [StageCosts(forward={"f": w}, backward={"b": 2.0 * w}, weights={"b": float(w)}) for w in weights]
    return simulate(plan, PlanCosts(stages=tuple(stages))).step_time_s


if __name__ == "__main__":
    sys.exit(main("pipeline", measure))
