"""The stages in front of the model: sample → prepare → (on CUDA) transfer, built for one replica from plain values.

``build_stages`` is also what the probe times: ``stage.make_worker()`` gives the callable of one stage, to be fed by
hand: ``prepared = prepare(sample(BatchTask(epoch=1, batch=0)))``.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from workers.data.features import DenseFeatures, SparseFeatures
from workers.data.graph import Graph
from workers.model_specs.sampled import Backend, SamplerName, TypeNames
from workers.models.blocks import InPlace
from workers.models.node_table import table_of
from workers.models.sampled import Reading, reading_of
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.graph_versions import ChangingGraph, NewestSampler
from workers.mqgnn.minibatch import MiniBatch, SampledBatch
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.named import Sampler, build_sampler, build_typed_sampler
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.mqgnn.sampling.typed import cut_by_type
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.stage import Stage
from workers.mqgnn.subgraph_cache import SubgraphCache
from workers.ops.neighbours import SparseRows

_log = logging.getLogger(__name__)
_EMPTY_BATCHES_TO_WARN = 3

# The stages, and so the queues of a plan. ``remote`` stands for the first two where others do them (``remote.asking``).
SAMPLE, PREPARE, REMOTE, TRANSFER = "sample", "prepare", "remote", "transfer"


def transfer_stages(device: torch.device) -> tuple[Stage, ...]:
    """What follows once a mini-batch is in host memory: on CUDA, its way to ``device``."""
    return (Stage(TRANSFER, lambda: TransferWorker(device)),) if device.type == "cuda" else ()


class SeedDraws(Protocol):
    """Makes seeds of what an order names, where these are no nodes (``workers.mqgnn.link_batches``)."""

    def sample(self, worker: "SampleWorker", task: BatchTask) -> SampledBatch:
        """Have ``worker`` sample around the seeds of its part of ``task``."""

    def prepare(self, worker: "PrepareWorker", sampled: Any) -> MiniBatch:
        """The mini-batch of what ``sample`` gave, with what ``worker`` gathers."""


def build_stages(
    graph: Graph | ChangingGraph,
    *,
    order: SeedOrder,
    fanouts: Sequence[int],
    rank: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    num_sampling_workers: int = 1,
    sampler: SamplerName = "uniform",
    replace: bool = False,
    disjoint: bool = False,
    temporal: bool = False,
    backend: Backend = "own",
    types: TypeNames | None = None,
    reading: Reading = "gathered",
    subgraphs: SubgraphCache | None = None,
    preference: Preference | None = None,
    draws: SeedDraws | None = None,
) -> tuple[Stage, ...]:
    """The stages that turn a ``BatchTask`` into the ``MiniBatch`` of ``rank`` on ``device``, in ``dtype``.

    ``subgraphs`` keeps what epochs share by the order's ``reuse``. Of a graph that changes, every mini-batch is one of
    the version that was the newest when it was sampled. ``draws`` make seeds of what ``order`` names, where these are
    no nodes. With ``types``, ``graph`` has numbered relations (``sampled_graph``), and each has ``fanouts``.
    ``reading`` is how the model's first layer meets the features (``workers.models.sampled.reading_of``).
    """
    graphs = graph if isinstance(graph, ChangingGraph) else ChangingGraph(graph)
    if subgraphs is not None:
        graphs.tell(partial(subgraphs.forget, num_nodes=graphs.now.graph.num_nodes))

    typed = None if types is None else cut_by_type(graphs.now.graph, types=types)  # typed edges never change

    def build(graph: Graph) -> Sampler:
        if typed is not None:
            return build_typed_sampler(typed, name=sampler, fanouts=fanouts, replace=replace)
        return build_sampler(
            csc_of(graph),
            name=sampler,
            fanouts=fanouts,
            replace=replace,
            disjoint=disjoint,
            node_times=graph.node_times if temporal else None,
            relabel_last_hop=reading != "edges",
            backend=backend,
            preference=preference,
        )

    def make_sample_worker() -> Callable[[BatchTask], SampledBatch]:
        worker = SampleWorker(NewestSampler(graphs, build=build), order=order, rank=rank, subgraphs=subgraphs)
        return worker if draws is None else partial(draws.sample, worker)

    def make_prepare_worker() -> Callable[[SampledBatch], MiniBatch]:
        worker = PrepareWorker(dtype=dtype, is_in_place=reading != "gathered")
        return worker if draws is None else partial(draws.prepare, worker)

    return (
        Stage(SAMPLE, make_sample_worker, num_sampling_workers),
        Stage(PREPARE, make_prepare_worker),
        *transfer_stages(device),
    )


def choose_reading(model: nn.Module, graph: Graph, *, device: torch.device, dtype: torch.dtype) -> Reading:
    """How the first layer of ``model`` is to meet the features of ``graph`` on ``device``.

    In place where that can be, a kernel covers the layer, and no rows that are learned lie beside them.
    """
    if table_of(model) is not None or not may_read_in_place(graph, device=device, dtype=dtype):
        return "gathered"
    return reading_of(model, _rows_of(graph))


def may_read_in_place(graph: Graph, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the features of ``graph`` lie here, where the model computes, in its number type: on CPUs alone."""
    is_here = isinstance(graph.features, DenseFeatures | SparseFeatures)
    return device.type == "cpu" and dtype == torch.float32 and is_here


def in_place_of(graph: Graph) -> InPlace:
    """The features of all nodes of ``graph`` as tensors that share its memory, and their degrees."""
    return InPlace(_rows_of(graph), degrees=degrees_of(graph))


def degrees_of(graph: Graph) -> torch.Tensor:
    """In-degrees of all nodes [N]."""
    return torch.from_numpy(graph.in_degrees(np.arange(graph.num_nodes)))


def _rows_of(graph: Graph) -> torch.Tensor | SparseRows:
    features = graph.features
    if isinstance(features, SparseFeatures):
        arrays = (torch.from_numpy(array) for array in (features.indptr, features.columns, features.values))
        return SparseRows(*arrays, num_features=features.num_features)
    assert isinstance(features, DenseFeatures)
    return torch.from_numpy(features.matrix)


class SampleWorker:
    """Takes the seeds of a task and samples around them."""

    def __init__(
        self, samplers: NewestSampler, *, order: SeedOrder, rank: int, subgraphs: SubgraphCache | None = None
    ) -> None:
        self._samplers, self.order, self.rank, self._subgraphs = samplers, order, rank, subgraphs
        self._num_without_edges = 0  # mini-batches, from the first on

    def __call__(self, task: BatchTask) -> SampledBatch:
        """Sample the part of ``task`` that is this replica's."""
        return self.sample(self.order.part(epoch=task.epoch, batch=task.batch, rank=self.rank), task=task)

    def sample(self, seeds: np.ndarray, *, task: BatchTask) -> SampledBatch:
        """Sample around ``seeds`` for ``task``."""
        version, sampler = self._samplers.now()
        subgraph = self._subgraph(task, seeds, version=version.number, sampler=sampler)
        self._watch_edges(len(seeds), sum(subgraph.num_edges_per_hop))
        num_seeds_all = self.order.num_seeds(task.batch)
        return SampledBatch(task=task, seeds=seeds, graph=version.graph, subgraph=subgraph, num_seeds_all=num_seeds_all)

    def _subgraph(self, task: BatchTask, seeds: np.ndarray, *, version: int, sampler: Sampler) -> SampledSubgraph:
        sampled_in = self.order.sampled_in(task.epoch)

        def sample() -> SampledSubgraph:
            key = stream_key(Stream.SAMPLING, self.order.seed, sampled_in, task.batch)
            return sampler.sample(seeds, key=key)

        if self._subgraphs is None:
            return sample()
        return self._subgraphs.get(
            epoch=task.epoch, sampled_in=sampled_in, batch=task.batch, seeds=seeds, sample=sample, version=version
        )

    def _watch_edges(self, num_seeds: int, num_edges: int) -> None:
        """Warn once if the first mini-batches have no edge: the edges may point the other way."""
        if self._num_without_edges < 0 or not num_seeds:
            return
        self._num_without_edges = -1 if num_edges else self._num_without_edges + 1
        if self._num_without_edges == _EMPTY_BATCHES_TO_WARN:
            self._num_without_edges = -1
            _log.warning(
                "the first %d mini-batches have no edge: a node hears from the sources of edges that end in it; where"
                " messages should flow the other way, set model.direction to 'out'",
                _EMPTY_BATCHES_TO_WARN,
            )


class PrepareWorker:
    """Gathers features, unless they are read in place, and labels, and hands everything over as tensors."""

    def __init__(self, *, dtype: torch.dtype, is_in_place: bool) -> None:
        self._dtype, self._is_in_place = dtype, is_in_place
        self._in_place: tuple[Graph, InPlace] | None = None

    def __call__(self, sampled: SampledBatch) -> MiniBatch:
        """Build the mini-batch in host memory."""
        subgraph, graph = sampled.subgraph, sampled.graph
        return MiniBatch(
            task=sampled.task,
            seeds=torch.from_numpy(sampled.seeds),
            node_ids=torch.from_numpy(subgraph.node_ids),
            degrees=torch.from_numpy(graph.in_degrees(subgraph.node_ids)),
            x=self._features(graph, nodes=subgraph.node_ids),
            y=torch.from_numpy(graph.y[sampled.seeds]),
            indptr=torch.from_numpy(subgraph.indptr),
            indices=torch.from_numpy(subgraph.indices),
            num_sampled_nodes_per_hop=subgraph.num_nodes_per_hop,
            num_sampled_edges_per_hop=subgraph.num_edges_per_hop,
            num_seeds_all=sampled.num_seeds_all,
            edge_weights=None if subgraph.edge_weights is None else torch.from_numpy(subgraph.edge_weights),
            source_ids=None if subgraph.source_ids is None else torch.from_numpy(subgraph.source_ids),
            **_types_of(subgraph, graph=graph),
            nested=subgraph.nested,
        )

    def _features(self, graph: Graph, *, nodes: np.ndarray) -> torch.Tensor | InPlace:
        if not self._is_in_place:
            return torch.from_numpy(graph.features.gather(nodes)).to(self._dtype)
        if self._in_place is None or self._in_place[0] is not graph:
            self._in_place = graph, in_place_of(graph)
        return self._in_place[1]


def _types_of(subgraph: SampledSubgraph, *, graph: Graph) -> dict[str, torch.Tensor]:
    if subgraph.relations is None:
        return {}
    assert graph.node_types is not None, "relations were numbered, and types of nodes with them"
    return {
        "node_types": torch.from_numpy(graph.node_types[subgraph.node_ids]),
        "relations": torch.from_numpy(subgraph.relations),
    }


class TransferWorker:
    """Copies mini-batches to a CUDA device on a stream of its own, beside the kernels of the model."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: MiniBatch) -> MiniBatch:
        """Start the copy; the consumer waits for its end with ``MiniBatch.wait``."""
        return batch.to_cuda(self._device, stream=self._stream)
