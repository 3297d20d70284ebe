"""Our side of ``mqgnn_epoch``: the stages, kernels and step of a job, one epoch for every line that comes in."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.kit.objectives import CROSS_ENTROPY, classify
from tests.kit.rank_runs import queue_budgets
from workers.comm.axis import Axis
from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.graph import TRAIN, VALIDATION, Graph
from workers.models.registry import build_model
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import AllReduce
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages, choose_reading
from workers.mqgnn.seed_order import SeedOrder
from workers.spec import SPEC_OF_MODEL, TrainingSpec
from workers.training.memory import keep_freed_memory
from workers.training.optimizer import build_optimizer, every_parameter

HIDDEN, BATCH_SIZE = 128, 1024
CPU = torch.device("cpu")
BUDGETS = queue_budgets(max_items=4, max_bytes=2**28)


class Ours:
    """The graph, and one replica per model."""

    def __init__(self, folder: Path) -> None:
        with np.load(folder / "graph.npz") as stored:
            arrays = {name: stored[name] for name in stored.files}
        if "x" in arrays:
            features: DenseFeatures | SparseFeatures = DenseFeatures(arrays["x"])
        else:
            sizes = int(arrays["num_features"])
            features = SparseFeatures(arrays["begins"], arrays["columns"], arrays["values"], num_features=sizes)
        split = np.full(len(arrays["y"]), VALIDATION, dtype=np.int8)
        split[arrays["seeds"]] = TRAIN
        indices = arrays["indices"].astype(np.int32)
        self.graph = Graph(arrays["indptr"], indices, features=features, y=arrays["y"], split=split)
        self.seeds, self.num_classes = arrays["seeds"], int(arrays["y"].max()) + 1
        self.replicas: dict[str, ReplicaStep] = {}
        self.epoch = 0

    def replica(self, name: str, fanouts: tuple[int, ...]) -> ReplicaStep:
        """Built once, and trained on from epoch to epoch, as on the other side."""
        key = f"{name}{len(fanouts)}"
        if key not in self.replicas:
            self.replicas[key] = self.fresh(name, fanouts)
        return self.replicas[key]

    def fresh(self, name: str, fanouts: tuple[int, ...]) -> ReplicaStep:
        """A fresh model and its optimiser."""
        torch.manual_seed(0)
        spec = SPEC_OF_MODEL[name](name=name, hidden_size=HIDDEN, fanouts=fanouts, dropout=0.0)
        model = build_model(spec, num_features=self.graph.features.num_features, num_classes=self.num_classes)
        optimizer = build_optimizer(model, spec=TrainingSpec(weight_decay=0.0), decayed=every_parameter)
        exchange = AllReduce(model, axis=Axis())
        return ReplicaStep(model, optimizer=optimizer, loss=CROSS_ENTROPY, exchange=exchange, seed=0)

    def answer(self, ask: dict[str, Any]) -> dict[str, float]:
        """Seconds of an epoch after the first mini-batch of another, or the accuracy of a fresh model after ``epochs``.

        The accuracy is that of all nodes that are no seeds, with all neighbours.
        """
        torch.set_num_threads(ask["threads"])
        if "epochs" not in ask:
            return {"seconds": self.epoch_s(ask, replica=self.replica(ask["model"], tuple(ask["fanouts"])))}
        replica = self.fresh(ask["model"], tuple(ask["fanouts"]))
        for _ in range(ask["epochs"]):
            self.epoch_s(ask, replica=replica, warm_up=0)
        evaluator = Evaluator(self.graph, axis=Axis(), device=CPU, dtype=torch.float32)
        scores = evaluator.scores(replica.model, objective=classify(self.num_classes))
        return {"accuracy": scores["val_accuracy"]}

    def epoch_s(self, ask: dict[str, Any], *, replica: ReplicaStep, warm_up: int = 1) -> float:
        """Seconds of one epoch after the first ``warm_up`` mini-batches of another."""
        fanouts, batch_size = tuple(ask["fanouts"]), ask.get("batch_size", BATCH_SIZE)
        order = SeedOrder(self.seeds[: ask["num_batches"] * batch_size], batch_size, seed=0, world_size=1)
        stages = build_stages(
            self.graph,
            order=order,
            fanouts=fanouts,
            rank=0,
            device=CPU,
            sampler=ask.get("sampler", "uniform"),
            reading=choose_reading(replica.model, self.graph, device=CPU, dtype=torch.float32),
        )
        pipeline = Pipeline(stages, budgets=BUDGETS, pipelined=ask["pipelined"])
        self.epoch += 1
        first = self.epoch * order.steps_per_epoch
        for start, end in ((first - warm_up, first), (first, first + order.steps_per_epoch)):
            begin = time.perf_counter()
            with pipeline.run(order.tasks(start, end)) as batches:
                for batch in batches:
                    replica.exchange(replica.compute(batch))
                    replica.update()
        return time.perf_counter() - begin


def serve(folder: Path) -> None:
    """An answer for every line that comes in."""
    keep_freed_memory()
    ours = Ours(folder)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(ours.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
