"""One process of ``mqgnn_cache``: who holds the features, or who trains on them. It is asked in lines of JSON."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from planner.caching import CacheRule
from tests.benchmarks.power_law_graph import power_law_edges
from tests.kit.rank_runs import queue_budgets
from workers.comm.axis import Axis
from workers.data.feature_server import FeatureServer
from workers.data.features import DenseFeatures
from workers.data.graph import NO_SPLIT, TRAIN, Graph
from workers.data.remote_features import Holder, RemoteFeatures
from workers.models.registry import build_model
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.exchange import AllReduce
from workers.mqgnn.feature_cache import CachedFeatures, count_hot_rows, fill_cache, rank_rows
from workers.mqgnn.pipeline import Pipeline
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.subgraph_cache import SubgraphCache
from workers.spec import SampledGNNSpec, TrainingSpec
from workers.training.memory import PeakMemory
from workers.training.optimizer import build_optimizer, every_parameter

NUM_NODES, NUM_EDGES, NUM_FEATURES, NUM_CLASSES = 200_000, 3_000_000, 100, 47
NUM_SEEDS, BATCH_SIZE, FANOUTS, HIDDEN = 20_480, 1024, (10, 5), 128
BUDGETS = queue_budgets(max_items=4, max_bytes=2**26)
CPU = torch.device("cpu")


def hold(address: str) -> None:
    """Serve random features until the input ends."""
    rows = np.random.default_rng(0).standard_normal((NUM_NODES, NUM_FEATURES), dtype=np.float32)
    server = FeatureServer(DenseFeatures(rows), first=0, address=address)
    print(json.dumps({"port": server.port, "token": server.token.hex()}), flush=True)
    sys.stdin.read()
    server.stop()


def open_graph() -> Graph:
    """The graph of ``mqgnn_epoch``, without features."""
    edges, rng = power_law_edges(NUM_NODES, num_edges=NUM_EDGES), np.random.default_rng(1)
    split = np.full(NUM_NODES, NO_SPLIT, dtype=np.int8)
    split[rng.choice(NUM_NODES, NUM_SEEDS, replace=False)] = TRAIN
    labels = rng.integers(NUM_CLASSES, size=NUM_NODES)
    return Graph(
        edges.indptr, edges.indices, features=DenseFeatures(np.zeros((0, NUM_FEATURES))), y=labels, split=split
    )


class Side:
    """One way to train: its stages, model and counters, as in a job."""

    def __init__(self, graph: Graph, *, holder: Holder, rule: CacheRule) -> None:
        own = DenseFeatures(np.zeros((0, NUM_FEATURES), dtype=np.float32))
        self.remote = RemoteFeatures(own, first=NUM_NODES, holders=[holder])
        seeds = np.flatnonzero(graph.split == TRAIN)
        order = SeedOrder(seeds, BATCH_SIZE, seed=0, reuse=rule.sampled_in)
        hottest = rank_rows(graph, policy=rule.policy, seeds=order.train_nodes, batch_size=BATCH_SIZE, fanouts=FANOUTS)
        self.cached = fill_cache(self.remote, hottest=hottest, max_bytes=rule.feature_bytes or 0)
        self.subgraphs = SubgraphCache(max_bytes=rule.subgraph_bytes or 0) if rule.reuses else None
        self.graph = replace(graph, features=self.cached or self.remote)
        torch.manual_seed(0)
        spec = SampledGNNSpec(name="graphsage", hidden_size=HIDDEN, fanouts=FANOUTS)
        self.model = build_model(spec, num_features=NUM_FEATURES, num_classes=NUM_CLASSES)
        self.replica = ReplicaStep(
            self.model,
            optimizer=build_optimizer(self.model, spec=TrainingSpec(), decayed=every_parameter),
            loss=torch.nn.CrossEntropyLoss(reduction="sum"),
            exchange=AllReduce(self.model, axis=Axis()),
            seed=0,
        )
        self.order, self.num_epochs = order, 0
        self.stages = build_stages(
            self.graph,
            order=order,
            fanouts=FANOUTS,
            rank=0,
            device=CPU,
            subgraphs=self.subgraphs,
            preference=_preference(rule, hottest=hottest),
        )

    def epoch(self) -> None:
        """The next epoch, as a pipeline of stages."""
        start = self.num_epochs * self.order.steps_per_epoch
        self.num_epochs += 1
        with Pipeline(self.stages, budgets=BUDGETS).run(
            self.order.tasks(start, start + self.order.steps_per_epoch)
        ) as batches:
            for batch in batches:
                self.replica.exchange(self.replica.compute(batch))
                self.replica.update()

    def evaluate(self) -> None:
        """Exact outputs of all nodes, as jobs do every few epochs."""
        for _ in Evaluator(self.graph, axis=Axis(), device=CPU, dtype=torch.float32).outputs(self.model):
            pass


def _bytes_of(cache: CachedFeatures | SubgraphCache | None) -> int:
    return cache.nbytes if cache else 0


def _preference(rule: CacheRule, *, hottest: np.ndarray) -> Preference | None:
    if rule.prefer == 1:
        return None
    matrix_bytes = NUM_NODES * NUM_FEATURES * 4
    num_hot = count_hot_rows(rule.feature_bytes or 0, num_rows=NUM_NODES, feature_bytes=matrix_bytes)
    preferred = np.zeros(NUM_NODES, dtype=bool)
    preferred[hottest[:num_hot]] = True
    return Preference(preferred, factor=rule.prefer)


class Trainer:
    """Both sides in one process, and a meter on its link."""

    def __init__(self, *, holder: Holder, interface: str) -> None:
        self._graph, self._holder = open_graph(), holder
        self._received = Path(f"/sys/class/net/{interface}/statistics/rx_bytes")
        self._sides: dict[str, Side] = {}

    def open(self, *, side: str, rule: dict[str, Any]) -> dict[str, Any]:
        """Make a side ready, its cache filled, one epoch behind it."""
        begin, before = time.perf_counter(), self._bytes()
        made = self._sides[side] = Side(self._graph, holder=self._holder, rule=CacheRule(**rule))
        filled_s, filled_bytes = time.perf_counter() - begin, self._bytes() - before
        made.epoch()
        return {"filled_s": filled_s, "filled_bytes": filled_bytes, "feature_cache_bytes": _bytes_of(made.cached)}

    def epoch(self, *, side: str) -> dict[str, Any]:
        """Seconds of one epoch, those of the processor among them, and the bytes that came over the link meanwhile."""
        begin, busy, before = time.perf_counter(), time.process_time(), self._bytes()
        self._sides[side].epoch()
        seconds, cpu_s, received = time.perf_counter() - begin, time.process_time() - busy, self._bytes() - before
        held = _bytes_of(self._sides[side].subgraphs)
        return {"seconds": seconds, "cpu_s": cpu_s, "bytes": received, "subgraph_bytes": held}

    def peak(self, *, rule: dict[str, Any]) -> dict[str, Any]:
        """Peak memory of a job by ``rule``: two epochs and an evaluation, over what was there before."""
        memory = PeakMemory()
        memory.start()
        with self._alone(rule) as side:
            side.epoch()
            side.evaluate()
            side.epoch()
        return {"peak_bytes": memory.peak_bytes()}

    @contextmanager
    def _alone(self, rule: dict[str, Any]) -> Iterator[Side]:
        side = Side(self._graph, holder=self._holder, rule=CacheRule(**rule))
        yield side
        side.remote.close()

    def _bytes(self) -> int:
        return int(self._received.read_text())


def main() -> None:
    """Play the part that the first argument names."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    if settings["part"] == "holder":
        hold(settings["address"])
        return
    holder = Holder(
        name="the holder",
        first=0,
        end=NUM_NODES,
        address=settings["address"],
        port=settings["port"],
        token=bytes.fromhex(settings["token"]),
    )
    trainer = Trainer(holder=holder, interface=settings["interface"])
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(trainer, request.pop("do"))(**request)), flush=True)


if __name__ == "__main__":
    main()
