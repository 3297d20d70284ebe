"""One replica of the benchmark ``racom``, in a network namespace of its own: a line in asks, a line out answers.

Every request is a JSON object with ``do`` (``calibrate``, ``train``) and its arguments; all ranks get the
same ones in the same order. The graph is made here, from a seed.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from planner.sync import SyncRule
from tests.kit.objectives import CROSS_ENTROPY, classify
from tests.workers.mqgnn.graphs import clustered_graph
from workers.comm.axis import Axis, open_axis
from workers.data.graph import TRAIN, Graph
from workers.models.sampled import build_sampled_gnn
from workers.mqgnn.engine import ReplicaStep, forward_batch
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import AllReduce, Exchange
from workers.mqgnn.local_sgd import LocalSGD
from workers.mqgnn.minibatch import MiniBatch
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages, choose_reading
from workers.mqgnn.racom.exchange import Racom
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.sync_rules import open_exchange
from workers.spec import SampledGNNSpec, TrainingSpec
from workers.training.optimizer import build_optimizer, every_parameter

CPU = torch.device("cpu")
FANOUTS, NUM_CLASSES, NUM_FEATURES = (3, 3, 3), 16, 100
GRAPH = {"degree": 80, "noise": 0.02}  # four neighbours in five share the class
SNAPSHOT_EVERY_STEPS = 4  # of ddp, which agrees in every step
_DDP_BUCKET_MB = 0.5  # small against the model, so that its first bucket leaves early in backward


@dataclass
class Replica:
    """What every side trains: the same model from the same start."""

    graph: Graph
    axis: Axis
    hidden_size: int
    learning_rate: float

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Fresh weights, the same for every side and rank, and their optimiser."""
        torch.manual_seed(0)
        spec = SampledGNNSpec(name="graphsage", hidden_size=self.hidden_size, dropout=0.0, fanouts=FANOUTS)
        model = build_sampled_gnn(spec, num_features=NUM_FEATURES, num_classes=NUM_CLASSES)
        training = TrainingSpec(learning_rate=self.learning_rate, weight_decay=0.0)
        return model, build_optimizer(model, spec=training, decayed=every_parameter)

    def batches(self, *, batch_size: int, num_steps: int, shares: Any = None) -> Iterator[MiniBatch]:
        """The mini-batches of this rank, sampled as they are asked for."""
        train_nodes = np.flatnonzero(self.graph.split == TRAIN)
        order = SeedOrder(train_nodes, batch_size, 0, world_size=self.axis.size, shares=shares)
        stages = build_stages(
            self.graph,
            order=order,
            fanouts=FANOUTS,
            rank=self.axis.index,
            device=CPU,
            reading=choose_reading(self.build()[0], self.graph, device=CPU, dtype=torch.float32),
        )
        with Pipeline(stages, pipelined=False).run(order.tasks(0, num_steps)) as batches:
            yield from batches

    def accuracy(self, weights: list[Tensor]) -> float:
        """Of the validation nodes, on the whole graph, alone."""
        model, _ = self.build()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), weights, strict=True):
                parameter.copy_(value)
        evaluator = Evaluator(self.graph, axis=Axis(), device=CPU, dtype=torch.float32)
        return evaluator.scores(model, objective=classify(NUM_CLASSES))["val_accuracy"]


class TorchDDP:
    """PyTorch's own data parallelism, its all-reduce overlapped with backward, behind the calls of ``ReplicaStep``."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, size: int) -> None:
        self._ddp = DistributedDataParallel(_Blocks(model), bucket_cap_mb=_DDP_BUCKET_MB)
        self._optimizer, self._size = optimizer, size

    def step(self, batch: MiniBatch, *, repeats: int) -> None:
        """Forward and backward, ``repeats`` times, the last with its exchange; then the update."""
        for _ in range(repeats - 1):
            self._optimizer.zero_grad(set_to_none=False)
            with self._ddp.no_sync():
                self._backward(batch)
        self._optimizer.zero_grad(set_to_none=False)
        self._backward(batch)
        self._optimizer.step()

    def _backward(self, batch: MiniBatch) -> None:
        logits = self._ddp(batch)
        (CROSS_ENTROPY(logits, batch.y) * self._size / batch.num_seeds_all).backward()  # it takes means over ranks


class _Blocks(nn.Module):
    """A sampled model as a module whose forward takes a mini-batch."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: MiniBatch) -> Tensor:
        return forward_batch(self.model, batch)


def calibrate(replica: Replica, *, sizes: list[int]) -> dict[str, Any]:
    """Seconds of an all-reduce of the gradients, and of a step's own work at several ``sizes`` (seeds per rank)."""
    model, optimizer = replica.build()
    rule = AllReduce(model, axis=replica.axis)
    own_s = {}
    alone = ReplicaStep(model, optimizer=optimizer, loss=CROSS_ENTROPY, exchange=rule, seed=0)
    for size in sizes:
        spent = []
        begin = time.perf_counter()
        for batch in replica.batches(batch_size=size * replica.axis.size, num_steps=12):
            alone.compute(batch)
            optimizer.step()
            spent.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        own_s[size] = statistics.median(spent[2:])
    spent = []
    for _ in range(7):
        replica.axis.barrier()
        begin = time.perf_counter()
        rule.combine(torch.zeros(()))
        spent.append(time.perf_counter() - begin)
    return {
        "allreduce_s": statistics.median(spent[1:]),
        "own_s": own_s,
        "gradient_bytes": sum(parameter.nbytes for parameter in model.parameters()),
    }


def train(
    replica: Replica,
    *,
    rule: dict[str, Any],
    batch_size: int,
    num_steps: int,
    repeats: list[int],
    target: float,
    is_overlapped: bool = False,
) -> dict[str, Any]:
    """Train ``num_steps`` steps by ``rule`` without a pause; then find when agreed weights reached ``target``.

    ``repeats``: how often each rank computes a step. Evaluation comes after the run and is in no figure.
    """
    model, optimizer = replica.build()
    mine = repeats[replica.axis.index]
    snapshots: list[tuple[float, list[Tensor]]] = []
    figures: dict[str, float] = {}
    drift = 0.0
    with open_exchange(SyncRule(**rule), model, optimizer=optimizer, axis=replica.axis) as exchange:
        step_of = ReplicaStep(model, optimizer=optimizer, loss=CROSS_ENTROPY, exchange=exchange, seed=0)
        overlapped = TorchDDP(model, optimizer, size=replica.axis.size) if is_overlapped else None
        replica.axis.barrier()
        begin = time.perf_counter()
        batches = replica.batches(batch_size=batch_size, num_steps=num_steps, shares=exchange.shares)
        seen = 0
        for step, batch in enumerate(batches, 1):
            if overlapped is not None:
                overlapped.step(batch, repeats=mine)
            else:
                for _ in range(mine):
                    loss = step_of.compute(batch)
                step_of.exchange(loss)
                step_of.update()
            version, weights = agreed(exchange, model, step=step)
            if version != seen and replica.axis.index == 0:
                snapshots.append((time.perf_counter() - begin, [tensor.clone() for tensor in weights]))
            seen = version
            if isinstance(exchange, Racom):
                drift = max(drift, exchange.figures()["drift_over_bound"])
        own_s = time.perf_counter() - begin
        exchange.agree()
        figures = exchange.figures()
        figures["drift_over_bound_max"] = max(drift, figures.get("drift_over_bound", 0.0))
        total_s = time.perf_counter() - begin
        if replica.axis.index == 0:
            snapshots.append((total_s, [parameter.detach().clone() for parameter in model.parameters()]))
    if overlapped is not None:
        ring = 2 * sum(parameter.nbytes for parameter in model.parameters()) * (replica.axis.size - 1)
        figures["bytes_sent"] = float(num_steps * ring // replica.axis.size)
    reached = first_at(replica, snapshots, target=target) if replica.axis.index == 0 else {}
    replica.axis.barrier()
    return {"own_s": own_s, "total_s": total_s, "step_s": own_s / num_steps, "figures": figures, **reached}


def agreed(exchange: Exchange, model: nn.Module, *, step: int) -> tuple[int, list[Tensor]]:
    """The weights that all replicas have agreed last, and a number that changes with them."""
    if isinstance(exchange, Racom):
        return exchange.version, exchange.weights.reference
    every = exchange.period if isinstance(exchange, LocalSGD) else SNAPSHOT_EVERY_STEPS
    return step // every, [parameter.detach() for parameter in model.parameters()]


def first_at(replica: Replica, snapshots: list[tuple[float, list[Tensor]]], *, target: float) -> dict[str, Any]:
    """Seconds at which snapshots began to reach ``target`` (by bisection: one that does behind one that does not).

    With the accuracies that were looked at; None when the last does not reach it.
    """
    course: dict[float, float] = {}

    def reaches(place: int) -> bool:
        seconds, weights = snapshots[place]
        course[round(seconds, 3)] = round(replica.accuracy(weights), 4)
        return course[round(seconds, 3)] >= target

    low, high = -1, len(snapshots) - 1
    is_reached = reaches(high)
    while is_reached and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return {"reached_s": snapshots[high][0] if is_reached else None, "course": sorted(course.items())}


def main() -> None:
    """Serve until the input ends."""
    settings = json.loads(sys.argv[1])
    os.environ["GLOO_SOCKET_IFNAME"] = settings["interface"]
    torch.set_num_threads(1)
    rank, size = settings["rank"], settings["world_size"]
    dist.init_process_group("gloo", init_method=settings["address"], rank=rank, world_size=size)
    graph = clustered_graph(settings["num_nodes"], num_features=NUM_FEATURES, num_classes=NUM_CLASSES, **GRAPH)
    axis = open_axis((tuple(range(size)),), rank=rank)
    replica = Replica(graph, axis, hidden_size=settings["hidden_size"], learning_rate=settings["learning_rate"])
    actions = {"calibrate": calibrate, "train": train}
    print(json.dumps({"ready": rank}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(actions[request.pop("do")](replica, **request)), flush=True)
    axis.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
