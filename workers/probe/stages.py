"""Times the stages of the sampled pipeline on the real graph and model: the samples behind the planner's rates.

A mini-batch goes through the very workers and the very step that training uses, one after the other, on all replicas
together; so sampled sizes, page faults and waiting for the slower replica are in the numbers.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from planner.profiles import ProbeRequest, StageSample
from workers.data.graph import Graph, GraphDataset, rows_to_train
from workers.data.union import as_one_graph
from workers.model_specs.custom import CustomGNNSpec
from workers.models.node_table import table_of
from workers.models.registry import build_model
from workers.mqgnn.engine import ReplicaStep
from workers.mqgnn.exchange import AllReduce
from workers.mqgnn.feature_shares import deal_out
from workers.mqgnn.goals import draws_of, forward_of, sampling_of, scorer_of
from workers.mqgnn.minibatch import BatchTask
from workers.mqgnn.model_runs import runs_of
from workers.mqgnn.preparation import TRANSFER, build_stages
from workers.mqgnn.sampling.sampled_graph import graph_to_sample
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.table_exchange import with_learned_features, with_table
from workers.probe.memory import measure_peak_bytes
from workers.probe.ranks import Ranks, time_once_s
from workers.probe.toy_graph import ring_graph
from workers.spec import TrainSpec
from workers.training.losses import build_loss
from workers.training.memory import keep_freed_memory
from workers.training.model_fit import resolve_model
from workers.training.objective import resolve_objective
from workers.training.optimizer import build_optimizer, every_parameter

_WARM_UPS = 2
_FEWEST, _MOST = 3, 40  # measured mini-batches; the budget decides in between
# Chosen: mini-batches differ in size; the largest of so many is near the largest of all, and plans have a margin.
_PEAKS = 8
_HOST = torch.device("cpu")


def measure_stages(
    request: ProbeRequest, *, spec: TrainSpec, dataset: GraphDataset, ranks: Ranks
) -> tuple[StageSample, ...]:
    """Every stage at every batch size (seeds of one replica) and thread count of ``request``. Collective.

    Only compute is measured on several thread counts: the other stages run on one. What an evaluation holds is known of
    the models by name; with a module of the user's own one is run, and weighed.
    """
    keep_freed_memory()
    budget_s = request.budget_s / (len(request.threads) * len(request.stage_batch_sizes))
    resolved = spec.model_copy(update={"model": resolve_model(spec.model, dataset)})
    samples: list[StageSample] = []
    with _features_in_place(spec, as_one_graph(dataset), ranks=ranks) as graph:
        for batch_size in request.stage_batch_sizes:
            replica = _Replica(resolved, dataset, graph=graph, ranks=ranks, batch_size=batch_size)
            if isinstance(resolved.model, CustomGNNSpec) and batch_size == request.stage_batch_sizes[0]:
                samples.append(replica.measure_evaluation())
            for num_threads in request.threads:
                torch.set_num_threads(num_threads)
                found = replica.measure(num_threads=num_threads, budget_s=budget_s)
                is_first = num_threads == request.threads[0]
                samples += [sample for sample in found if sample.stage == "compute" or is_first]
    return tuple(samples)


@contextmanager
def _features_in_place(spec: TrainSpec, graph: Graph, *, ranks: Ranks) -> Iterator[Graph]:
    """``graph`` with its features where the job will have them; nothing is cached, as no budget is known yet."""
    if spec.training.features == "local":
        yield graph
        return
    with deal_out(graph, axis=ranks.axis, device=ranks.device, address=ranks.address) as remote:
        yield replace(graph, features=remote)


def rehearse_stages(spec: TrainSpec, *, ranks: Ranks) -> None:
    """One step of a toy model on a toy graph: everything that training uses, used once. Collective."""
    sampler = "uniform" if spec.model.sampler == "weighted" else spec.model.sampler  # the toy's edges carry nothing
    small = {"sampler": sampler, "temporal": False, "hetero": False, "types": None}
    if not isinstance(spec.model, CustomGNNSpec):  # which says itself how large it is
        small["hidden_size"] = 8
    toy = spec.model_copy(
        update={
            "model": spec.model.model_copy(update=small),
            "training": spec.training.model_copy(update={"loss": None, "metric": None, "class_weights": None}),
        }
    )
    graph = ring_graph()
    num_features = graph.features.num_features
    dataset = GraphDataset(name="ring", graphs=(graph,), num_features=num_features, num_classes=2, fingerprint="ring")
    _Replica(toy, dataset, graph=graph, ranks=ranks, batch_size=16).run_once()


@dataclass
class _Observed:
    """What was seen of one stage, mini-batch by mini-batch."""

    seconds: list[float] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)


class _Replica:
    """The replica of this rank at one batch size."""

    def __init__(self, spec: TrainSpec, dataset: GraphDataset, *, graph: Graph, ranks: Ranks, batch_size: int) -> None:
        """``graph`` is all of ``dataset`` as one."""
        graph, training = graph_to_sample(graph, spec.model), spec.training
        dtype = getattr(torch, training.dtype)
        model = build_model(spec.model, num_features=dataset.num_features, num_classes=dataset.num_classes)
        if (table := table_of(model)) is not None:
            table.fill(graph.num_nodes)
        model = model.to(ranks.device, dtype)
        self._ranks, self._batch_size = ranks, batch_size
        self._parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())
        runs = runs_of(
            model,
            spec.model,
            graph,
            dataset=dataset,
            rank=ranks.rank,
            seed=training.seed,
            device=ranks.device,
            dtype=dtype,
        )
        objective = resolve_objective(training, dataset)
        self._step = ReplicaStep(
            model,
            optimizer=build_optimizer(model, spec=training, decayed=every_parameter),
            loss=build_loss(objective),
            exchange=with_table(AllReduce(model, axis=ranks.axis), model, axis=ranks.axis),
            seed=training.seed,
            forward=forward_of(dataset, pooling=spec.model.pooling, forward=runs.forward),
        )
        order = SeedOrder(
            train_nodes=rows_to_train(dataset),
            batch_size=batch_size * ranks.world_size,
            seed=training.seed,
            world_size=ranks.world_size,
        )
        stages = build_stages(
            graph,
            order=order,
            rank=ranks.rank,
            device=ranks.device,
            dtype=dtype,
            reading=runs.reading,
            draws=draws_of(dataset, graph),
            **sampling_of(spec.model, dataset),
        )

        def evaluate() -> None:
            evaluator = runs.evaluator(with_learned_features(graph, model), axis=ranks.axis)
            pooling = spec.model.pooling
            scorer_of(dataset, evaluator=evaluator, objective=objective, axis=ranks.axis, pooling=pooling)(model)

        self._evaluate = evaluate
        self._workers = {stage.name: stage.make_worker() for stage in stages}
        self._tasks = _full_batches(order)

    def measure(self, *, num_threads: int, budget_s: float) -> list[StageSample]:
        """One sample per stage, from as many mini-batches as fit into ``budget_s``. Collective."""
        for _ in range(_WARM_UPS):
            warm = self.run_once()
        (step_s,) = self._ranks.largest([sum(stage.seconds[0] for stage in warm.values())])
        seen: defaultdict[str, _Observed] = defaultdict(_Observed)
        for _ in range(int(np.clip(budget_s / max(step_s, 1e-6), _FEWEST, _MOST))):
            self._run(seen, _timed)
        for _ in range(_PEAKS):
            self._run(seen, _weighed)
        compute, update = seen["compute"], seen.pop("update")
        compute.seconds = [sum(pair) for pair in zip(compute.seconds, update.seconds, strict=True)]
        if self._ranks.group is None:
            del seen["exchange"]
        return [self._sample(name, stage, num_threads) for name, stage in seen.items()]

    def measure_evaluation(self) -> StageSample:
        """Exact scores of everything, once, as training will ask for them. Collective."""
        seen = _Observed(num_bytes=[0])
        _weighed(lambda: _timed(self._evaluate, seen, self._ranks.device), seen, self._ranks.device)
        return self._sample("evaluate", seen, torch.get_num_threads())

    def run_once(self) -> dict[str, _Observed]:
        """One step, timed by stage. Collective."""
        seen: defaultdict[str, _Observed] = defaultdict(_Observed)
        self._run(seen, _timed)
        return seen

    def _run(self, seen: defaultdict[str, _Observed], watch: "_Watch") -> None:
        """One step, every stage watched by itself."""
        device, item = self._ranks.device, next(self._tasks)
        for name, worker in self._workers.items():
            item = watch(partial(worker, item), seen[name], device if name == TRANSFER else _HOST)
            seen[name].num_bytes.append(item.nbytes)
        loss = watch(partial(self._step.compute, item), seen["compute"], device)
        watch(partial(self._step.exchange, loss), seen["exchange"], device)
        watch(self._step.update, seen["update"], device)
        seen["exchange"].num_bytes.append(self._parameter_bytes)

    def _sample(self, name: str, stage: _Observed, num_threads: int) -> StageSample:
        """The mean of all replicas' seconds (together they wait for the slower), the largest of all else."""
        (mean_s,) = self._ranks.mean([float(np.mean(stage.seconds))])
        p95_s, num_bytes, peak_bytes = self._ranks.largest(
            [float(np.percentile(stage.seconds, 95)), float(np.mean(stage.num_bytes or [0])), max(stage.peak_bytes)]
        )
        return StageSample(
            stage=name,
            num_threads=num_threads if name == "compute" else 1,
            batch_size=self._batch_size,
            seconds=mean_s,
            p95_s=p95_s,
            num_bytes=round(num_bytes),
            peak_bytes=round(peak_bytes),
        )


_Watch = Callable[[Callable[[], Any], _Observed, torch.device], Any]


def _timed(work: Callable[[], Any], seen: _Observed, device: torch.device) -> Any:
    result = []
    seen.seconds.append(time_once_s(lambda: result.append(work()), device=device))
    return result[0]


def _weighed(work: Callable[[], Any], seen: _Observed, device: torch.device) -> Any:
    result = []
    seen.peak_bytes.append(measure_peak_bytes(lambda: result.append(work()), device=device))
    return result[0]


def _full_batches(order: SeedOrder) -> Iterator[BatchTask]:
    """Tasks with a full share for every replica, epoch after epoch."""
    full = max(1, len(order.train_nodes) // order.batch_size)
    epoch = 0
    while True:
        epoch += 1
        for batch in range(full):
            yield BatchTask(epoch=epoch, batch=batch)
