"""Mini-batches of whole graphs: all nodes of a step's graphs are its seeds, each graph is predicted by its nodes.

A graph's prediction is the mean, or the sum, of what the model says of its nodes. Since all of them are seeds, and all
their neighbours are taken, every layer runs on all rows of the mini-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workers.data.graph import GraphDataset
from workers.data.union import node_offsets
from workers.model_specs.sampled import SampledPooling
from workers.mqgnn.engine import Forward
from workers.mqgnn.minibatch import MiniBatch, SampledBatch
from workers.mqgnn.preparation import PrepareWorker, SampleWorker
from workers.mqgnn.sampling.neighbors import ALL_NEIGHBORS
from workers.mqgnn.seed_order import BatchTask


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledGraphs(SampledBatch):
    """As ``SampledBatch``, of the nodes of ``graphs``; ``members`` says whose each is, by place."""

    graphs: np.ndarray  # int64 [graphs]
    members: np.ndarray  # int64 [B]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return super().nbytes + self.graphs.nbytes + self.members.nbytes


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphsBatch(MiniBatch):
    """As ``MiniBatch``; ``y`` has a row for each graph."""

    members: Tensor  # int64 [B], the graph of each seed, by place


class GraphDraws:
    """The nodes of a step's graphs as seeds in the union of all graphs (``workers.data.union``)."""

    def __init__(self, dataset: GraphDataset) -> None:
        self._offsets = node_offsets(dataset)
        self._y = np.concatenate([graph.y for graph in dataset.graphs])

    def sample(self, worker: SampleWorker, task: BatchTask) -> SampledGraphs:
        """The part of ``task`` that is the replica's of ``worker``."""
        graphs = worker.order.part(epoch=task.epoch, batch=task.batch, rank=worker.rank)
        sizes = self._offsets[graphs + 1] - self._offsets[graphs]
        members = np.repeat(np.arange(len(graphs)), sizes)
        begins = self._offsets[graphs] - (np.cumsum(sizes) - sizes)  # of a graph's nodes, less those before them here
        sampled = worker.sample(np.arange(len(members)) + begins[members], task=task)
        return SampledGraphs(**vars(sampled), graphs=graphs, members=members)

    def prepare(self, worker: PrepareWorker, sampled: SampledGraphs) -> GraphsBatch:
        """With what ``worker`` gathers."""
        batch: dict[str, Any] = vars(worker(sampled)) | {"y": torch.from_numpy(self._y[sampled.graphs])}
        return GraphsBatch(**batch, members=torch.from_numpy(sampled.members))


def all_neighbours(fanouts: Sequence[int]) -> tuple[int, ...]:
    """As many hops: graphs of a set are small, and are taken whole."""
    return (ALL_NEIGHBORS,) * len(fanouts)


def pool(outputs: Tensor, members: Tensor, *, num_graphs: int, pooling: SampledPooling) -> Tensor:
    """[num_graphs, C] of the rows ``outputs`` [n, C] of nodes in the graphs ``members`` [n]."""
    sums = outputs.new_zeros(num_graphs, outputs.shape[1]).index_add(0, members, outputs)
    if pooling == "sum":
        return sums
    return sums / members.bincount(minlength=num_graphs).clamp(min=1).unsqueeze(1).to(sums)


def pooled(forward: Forward, *, pooling: SampledPooling) -> Forward:
    """How a model answers for the graphs of a ``GraphsBatch``, where ``forward`` answers for nodes."""

    def run(model: nn.Module, batch: GraphsBatch, *, draw: int) -> Tensor:
        return pool(forward(model, batch, draw=draw), batch.members, num_graphs=len(batch.y), pooling=pooling)

    return run
