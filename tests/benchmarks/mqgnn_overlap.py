"""What overlap brings: stages in threads with queues between them, against the same stages one after the other.

One thread per stage on both sides (sample, prepare, compute), on two cores. The model's hidden size is chosen so that
computing takes as long as sampling and preparing together: there overlap can bring most, twice as much. Features are
gathered, as rows held elsewhere or for a GPU would be, on the power-law graph of ``mqgnn_epoch``.

``bottleneck_busy`` is the share of an epoch in which the stage that works most does so; ``speedup`` the time of an
epoch in a row over that of the pipelined one; ``balance`` how long sampling and preparing take over computing, in a
row. Both forms make the same weights, which is checked.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from tests.benchmarks.frame import Outcome, alternate, main, medians
from tests.benchmarks.mqgnn_epoch import graph_of
from tests.kit.objectives import CROSS_ENTROPY
from tests.kit.rank_runs import queue_budgets
from workers.comm.axis import Axis
from workers.data.graph import TRAIN, Graph
from workers.models.registry import build_model
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.exchange import AllReduce
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.seed_order import SeedOrder
from workers.spec import SampledGNNSpec, TrainingSpec
from workers.training.optimizer import build_optimizer, every_parameter

FANOUTS, BATCH_SIZE, NUM_BATCHES, ROUNDS = (10, 10), 1024, 40, 5
HIDDEN_SIZES = (8, 16, 24, 32, 48, 64, 96, 128)
BUDGETS = queue_budgets(max_items=4, max_bytes=2**28)
BUSY_BAR, SPEEDUP_BAR, BALANCE_BOUNDS = 0.9, 1.6, (0.8, 1.25)


@dataclass
class Epoch:
    """Seconds of an epoch, and how many of them each stage worked."""

    seconds: float
    busy_s: dict[str, float]

    @property
    def balance(self) -> float:
        """Sampling and preparing over computing."""
        return (self.busy_s["sample"] + self.busy_s["prepare"]) / self.busy_s["compute"]


class Trainer:
    """One model on the graph; epochs in either form go on from each other."""

    def __init__(self, graph: Graph, *, hidden_size: int, num_batches: int = NUM_BATCHES) -> None:
        torch.manual_seed(0)
        spec = SampledGNNSpec(name="graphsage", hidden_size=hidden_size, fanouts=FANOUTS, dropout=0.0)
        model = build_model(spec, num_features=graph.features.num_features, num_classes=int(graph.y.max()) + 1)
        self.model, self._graph = model, graph
        optimizer = build_optimizer(model, spec=TrainingSpec(), decayed=every_parameter)
        exchange = AllReduce(model, axis=Axis())
        self._replica = ReplicaStep(model, optimizer=optimizer, loss=CROSS_ENTROPY, exchange=exchange, seed=0)
        seeds = (graph.split == TRAIN).nonzero()[0][: num_batches * BATCH_SIZE]
        self._order = SeedOrder(seeds, BATCH_SIZE, seed=0)

    def epoch(self, *, pipelined: bool) -> Epoch:
        """The same seeds every time."""
        device = torch.device("cpu")
        stages = build_stages(self._graph, order=self._order, fanouts=FANOUTS, rank=0, device=device)
        pipeline = Pipeline(stages, budgets=BUDGETS, pipelined=pipelined)
        compute_s, begin = 0.0, time.perf_counter()
        with pipeline.run(self._order.tasks(0, self._order.steps_per_epoch)) as batches:
            for batch in batches:
                started = time.perf_counter()
                self._replica.exchange(self._replica.compute(batch))
                self._replica.update()
                compute_s += time.perf_counter() - started
        busy_s = {name: meter.busy_s for name, meter in pipeline.meters.items()}
        return Epoch(time.perf_counter() - begin, busy_s | {"compute": compute_s})


def choose_hidden_size(graph: Graph) -> int:
    """The hidden size at which computing comes nearest to sampling and preparing together, in a row."""

    def imbalance(hidden_size: int) -> float:
        trainer = Trainer(graph, hidden_size=hidden_size, num_batches=NUM_BATCHES // 4)
        trainer.epoch(pipelined=False)
        balance = trainer.epoch(pipelined=False).balance
        print(f"hidden size {hidden_size}: balance {balance:.3f}", flush=True)
        return max(balance, 1 / balance)

    return min(HIDDEN_SIZES, key=imbalance)


def check_equal(graph: Graph, *, hidden_size: int) -> None:
    """Both forms make the same weights, bit for bit."""
    found = []
    for pipelined in (False, True):
        trainer = Trainer(graph, hidden_size=hidden_size, num_batches=4)
        trainer.epoch(pipelined=pipelined)
        found.append(trainer.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]), "overlap changed the weights"


def measure() -> Outcome:
    """Epochs in a row and pipelined, by turns."""
    torch.set_num_threads(1)
    return compare(graph_of("power-law"))


def compare(graph: Graph) -> Outcome:
    """The figures on ``graph``."""
    hidden_size = choose_hidden_size(graph)
    check_equal(graph, hidden_size=hidden_size)
    trainer = Trainer(graph, hidden_size=hidden_size)
    epochs: dict[str, list[Epoch]] = {"in a row": [], "pipelined": []}

    def side(name: str) -> float:
        epochs[name].append(trainer.epoch(pipelined=name == "pipelined"))
        return epochs[name][-1].seconds

    seconds = medians(alternate({name: lambda name=name: side(name) for name in epochs}, rounds=ROUNDS))
    figures = {
        "bottleneck_busy": statistics.median(max(e.busy_s.values()) / e.seconds for e in epochs["pipelined"]),
        "speedup": seconds["in a row"] / seconds["pipelined"],
        "balance": statistics.median(epoch.balance for epoch in epochs["in a row"]),
    }
    verdicts = {
        "bottleneck_busy": figures["bottleneck_busy"] >= BUSY_BAR,
        "speedup": figures["speedup"] >= SPEEDUP_BAR,
        "balance": BALANCE_BOUNDS[0] <= figures["balance"] <= BALANCE_BOUNDS[1],
    }
    busy_s: dict[str, Any] = {name: [epoch.busy_s for epoch in found] for name, found in epochs.items()}
    return Outcome(figures, verdicts, {"hidden_size": hidden_size, "epoch_s": seconds, "busy_s": busy_s})


if __name__ == "__main__":
    sys.exit(main("mqgnn_overlap", measure))
