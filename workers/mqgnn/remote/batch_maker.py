"""What an actor does for replicas elsewhere: the very stages that they would run, sample and prepare, one request at a
time. A mini-batch depends on the request alone, so it is the same whoever makes it, and however often.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from planner.plan import MQGNNPlan
from workers.data.graph import rows_to_train
from workers.data.paths import DataPaths
from workers.models.sampled import Reading
from workers.mqgnn.goals import draws_of, sampling_of
from workers.mqgnn.preparation import build_stages
from workers.mqgnn.remote.packing import PackedBatch, pack
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.stage import StageMeter, StageWorker
from workers.mqgnn.trained_data import open_data
from workers.spec import TrainSpec

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class BatchRequest:
    """The mini-batch of ``rank`` at ``task``, whose seeds are dealt by ``shares``.

    ``reading`` is how the replica's first layer meets the features (``preparation.choose_reading``).
    """

    task: BatchTask
    rank: int
    shares: tuple[int, ...]
    reading: Reading


class BatchMaker:
    """Makes the mini-batches of all replicas of a run. For one thread."""

    def __init__(self, spec: TrainSpec, *, plan: MQGNNPlan, paths: DataPaths) -> None:
        """Open the data. Raises ``DatasetInvalidError`` and whatever a reader raises."""
        self._data, self._plan = open_data(spec, paths=paths), plan
        self._shares: tuple[int, ...] = ()
        self._order = SeedOrder(
            train_nodes=rows_to_train(self._data.dataset),
            batch_size=plan.batch_size,
            seed=spec.training.seed,
            world_size=plan.world_size,
            shares=lambda step: self._shares,
            reuse=plan.cache.sampled_in,
        )
        self._workers: dict[tuple[int, Reading], Callable[[BatchTask], Any]] = {}

    def make(self, request: BatchRequest) -> PackedBatch:
        """The mini-batch, packed. Raises ``StageFailedError`` that names sample or prepare."""
        self._shares = request.shares
        whose = request.rank, request.reading
        if whose not in self._workers:
            self._workers[whose] = self._stages_for(*whose)
        return pack(self._workers[whose](request.task))

    def _stages_for(self, rank: int, reading: Reading) -> Callable[[BatchTask], Any]:
        spec, dataset, graph = self._data.spec, self._data.dataset, self._data.graph
        stages = build_stages(
            graph,
            order=self._order,
            rank=rank,
            device=_HOST,
            dtype=getattr(torch, spec.training.dtype),
            reading=reading,
            draws=draws_of(dataset, graph),
            **sampling_of(spec.model, dataset),
        )
        workers = [StageWorker(stage, meter=StageMeter()) for stage in stages]

        def run(item: Any) -> Any:
            for worker in workers:
                item = worker(item)
            return item

        return run
