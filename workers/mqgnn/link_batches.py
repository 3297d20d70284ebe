"""Mini-batches around links: both ends of a step's links and of their false ones are the seeds, each node once."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workers.data.graph import Graph, Links
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.engine import Forward
from workers.mqgnn.link_scores import score_links
from workers.mqgnn.minibatch import MiniBatch, SampledBatch
from workers.mqgnn.preparation import PrepareWorker, SampleWorker
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.links import LinkSeeder
from workers.mqgnn.seed_order import BatchTask


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledLinks(SampledBatch):
    """As ``SampledBatch``; the seeds are the nodes that links end in, told by their places in it."""

    sources: np.ndarray  # int64 [links]
    targets: np.ndarray  # int64 [links, 1 + false ones]: the true target first

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return super().nbytes + self.sources.nbytes + self.targets.nbytes


@dataclass(frozen=True, eq=False, kw_only=True)
class LinkBatch(MiniBatch):
    """As ``MiniBatch``; ``y`` has a row for each link, and says nothing."""

    sources: Tensor  # int64 [links]
    targets: Tensor  # int64 [links, 1 + false ones]


class LinkDraws:
    """Which links a step asks about, and which false ones beside them."""

    def __init__(self, graph: Graph, links: Links) -> None:
        """``graph`` shows the links that train; others may be drawn as false ones: nobody is to know of them."""
        self._links = links
        self._seeder = LinkSeeder(csc_of(graph), num_negatives=links.num_negatives)

    def sample(self, worker: SampleWorker, task: BatchTask) -> SampledLinks:
        """The part of ``task`` that is the replica's of ``worker``."""
        numbers = worker.order.part(epoch=task.epoch, batch=task.batch, rank=worker.rank)
        sampled_in = worker.order.sampled_in(task.epoch)  # epochs that share samples share false links
        key = stream_key(Stream.FALSE_LINKS, worker.order.seed, sampled_in, task.batch)
        found = self._seeder.seeds(self._links.sources[numbers], self._links.targets[numbers], key=key)
        sampled = worker.sample(found.nodes, task=task)
        return SampledLinks(**vars(sampled), sources=found.sources, targets=found.targets)

    def prepare(self, worker: PrepareWorker, sampled: SampledLinks) -> LinkBatch:
        """With what ``worker`` gathers."""
        batch: dict[str, Any] = vars(worker(sampled)) | {"y": torch.zeros(len(sampled.sources), dtype=torch.int64)}
        return LinkBatch(**batch, sources=torch.from_numpy(sampled.sources), targets=torch.from_numpy(sampled.targets))


def scores_of(forward: Forward) -> Forward:
    """How a model scores the links of a ``LinkBatch``, [links, 1 + false ones], where ``forward`` gives embeddings."""

    def run(model: nn.Module, batch: LinkBatch, *, draw: int) -> Tensor:
        return score_links(forward(model, batch, draw=draw), batch.sources, batch.targets)

    return run
