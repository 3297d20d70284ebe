"""A graph of several kinds of nodes and edges (PyG's ``HeteroData``), as the Trainer meets it.

A module is called ``(x_dict, edge_index_dict)`` on the subgraph around its seeds, which all are of one kind, as with
PyG's ``NeighborLoader``; it returns rows of that kind, or a dictionary that holds them. Scores and predictions take the
whole graph at once. Where it does not fit memory, taking convolutions over call by call, as ``own.inference`` does for
one kind of nodes, would have to come.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from workers.comm.axis import Axis
from workers.data.graph import Graph
from workers.errors import DatasetInvalidError
from workers.models.node_table import table_of
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.engine import Forward
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.own.forms import Form, checked_outputs, edges_of_csr, seeded
from workers.mqgnn.own.graph import OwnGraph, OwnSettings
from workers.mqgnn.own.pyg_data import dataset_of, features_of
from workers.mqgnn.own.replicas import equalize_statistics
from workers.mqgnn.preparation import PREPARE, SAMPLE
from workers.mqgnn.sampling.csc import Csc, csc_of_edges
from workers.mqgnn.sampling.hetero import EdgeType, HeteroSampler
from workers.mqgnn.sampling.native_kernels import sampler_kernels
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.stage import Stage


@dataclass(frozen=True, eq=False)
class TypedBatch:
    """One step's part of a replica: seeds first among the nodes of their kind."""

    task: BatchTask
    seeds: Tensor  # int64 [B]
    node_ids: Mapping[str, Tensor]  # by kind of nodes int64 [n]
    x: Mapping[str, Tensor]  # [n, F]
    edge_index: Mapping[EdgeType, Tensor]  # int64 [2, e]
    y: Tensor  # [B, …]
    num_seeds_all: int

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        tensors = (self.seeds, self.y, *self.node_ids.values(), *self.x.values(), *self.edge_index.values())
        return sum(tensor.nbytes for tensor in tensors)

    def wait(self) -> None:
        """Everything is here."""


class TypedGraph(OwnGraph):
    """``HeteroData``: kinds of nodes with ``x``, kinds of edges with ``edge_index``, one kind with labels and masks."""

    form: Form = "whole"
    by_calls = False

    def __init__(self, data: Any, settings: OwnSettings) -> None:
        """Raises ``DatasetInvalidError``."""
        if settings.links is not None:
            raise DatasetInvalidError(
                "links are predicted between nodes of one kind; found HeteroData: leave links out"
            )
        self._device, self._dtype, self._seed = settings.device, settings.dtype, settings.seed
        self._num_sampling_workers = settings.num_sampling_workers
        needs_features = not settings.node_embedding_size
        self._x = {
            kind: features_of(data[kind], where=f"data[{kind!r}]", needs_features=needs_features)
            for kind in data.node_types
        }
        self._x = {kind: x.to(self._device, self._dtype) for kind, x in self._x.items()}
        self._edges = {kind: _csc_of(data[kind].edge_index, kind, self._x) for kind in data.edge_types}
        self._predicted = _predicted_kind(data)
        labelled = data[self._predicted]
        self.labels = labelled.y
        masks = {name: labelled[name] for name in ("y", "train_mask", "val_mask", "test_mask") if name in labelled}
        nothing = torch.zeros(2, 0, dtype=torch.int64)
        x = features_of(labelled, needs_features=needs_features)
        self.dataset = dataset_of(Data(x=x, edge_index=nothing, **masks), task=settings.task)
        self._sampling: dict[str, Any] = {
            "num_nodes": {kind: len(x) for kind, x in self._x.items()},
            "fanouts": dict.fromkeys(self._edges, settings.fanouts),
            "rule": settings.sampler,
            "with_replacement": settings.replace,
        }

    @property
    def num_rows(self) -> int:
        """See ``OwnGraph``."""
        return sum(map(len, self._x.values()))

    @torch.no_grad()
    def outputs_width(self, model: nn.Module) -> int:
        """See ``OwnGraph``."""
        seeds = np.arange(1)
        sample, prepare = (stage.make_worker() for stage in self.stages(SeedOrder(seeds, 1, self._seed), rank=0))
        batch = prepare(sample(BatchTask(epoch=1, batch=0)))
        return self._run(model.eval(), self._with_learned_rows(model, batch), batch.edge_index).shape[1]

    def judge(self, model: nn.Module) -> None:
        """There is one way."""

    def stages(self, order: SeedOrder, *, rank: int) -> Sequence[Stage]:
        """See ``OwnGraph``."""

        def make_sample_worker() -> Any:
            sampler = HeteroSampler(self._edges, **self._sampling, kernels=sampler_kernels())
            return lambda task: self._sampled(sampler, order, task, rank=rank)

        return (
            Stage(SAMPLE, make_sample_worker, self._num_sampling_workers),
            Stage(PREPARE, lambda: lambda sampled: sampled.prepared(self._x, y=self.dataset.graphs[0].y)),
        )

    def forward(self, *, rank: int) -> Forward:
        """See ``OwnGraph``."""

        def run(model: nn.Module, batch: TypedBatch, *, draw: int) -> Tensor:
            if not len(batch.seeds):
                return torch.zeros(0, 1, device=self._device)
            with seeded(model, draw + rank):
                outputs = self._run(model, self._with_learned_rows(model, batch), batch.edge_index)
                return outputs[: len(batch.seeds)]

        return run

    def evaluator(self, model: nn.Module, *, axis: Axis) -> Evaluator:
        """See ``OwnGraph``."""
        edges = {
            kind: edges_of_csr(torch.from_numpy(csc.indptr), torch.from_numpy(csc.indices)).to(self._device)
            for kind, csc in self._edges.items()
        }
        everybody = {kind: torch.arange(len(x), device=self._device) for kind, x in self._x.items()}
        return _AtOnce(
            self.dataset.graphs[0],
            run=lambda model: self._run(model, self._beside(model, self._x, everybody), edges),
            axis=axis,
            device=self._device,
            dtype=self._dtype,
        )

    def _with_learned_rows(self, model: nn.Module, batch: TypedBatch) -> Mapping[str, Tensor]:
        return self._beside(model, batch.x, batch.node_ids)

    def _beside(self, model: nn.Module, x: Mapping[str, Tensor], nodes: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """``x`` of ``nodes``, by kind, and what ``model`` has learned for them: its table has kind after kind."""
        if (table := table_of(model)) is None:
            return x
        sizes = [len(rows) for rows in self._x.values()]
        begins = dict(zip(self._x, [0, *accumulate(sizes)], strict=False))
        numbers = torch.cat([nodes[kind] + begins[kind] for kind in x])
        rows = table.beside(table.weight.new_empty(len(numbers), 0), numbers)
        parts = rows.split([len(part) for part in x.values()])
        return {kind: torch.cat((part, rows), dim=1) for (kind, part), rows in zip(x.items(), parts, strict=True)}

    def _sampled(self, sampler: HeteroSampler, order: SeedOrder, task: BatchTask, *, rank: int) -> "_TypedSample":
        seeds = order.part(epoch=task.epoch, batch=task.batch, rank=rank)
        key = stream_key(Stream.SAMPLING, self._seed, task.epoch, task.batch)
        found = sampler.sample({self._predicted: seeds}, key=key)
        arrays = {kind: (found.indptr[kind], found.indices[kind]) for kind in self._edges}
        return _TypedSample(
            task=task,
            seeds=seeds,
            node_ids=found.node_ids,
            edges={kind: edges_of_csr(*map(torch.from_numpy, pair)) for kind, pair in arrays.items()},
            num_seeds_all=order.num_seeds(task.batch),
        )

    def _run(self, model: nn.Module, x: Mapping[str, Tensor], edge_index: Mapping[EdgeType, Tensor]) -> Tensor:
        outputs = model(dict(x), dict(edge_index))
        if isinstance(outputs, Mapping):
            outputs = outputs.get(self._predicted)
        return checked_outputs(outputs, num_rows=len(x[self._predicted]))


@dataclass(frozen=True, eq=False)
class _TypedSample:
    """The output of the sample stage."""

    task: BatchTask
    seeds: np.ndarray  # int64 [B]
    node_ids: Mapping[str, np.ndarray]
    edges: Mapping[EdgeType, Tensor]
    num_seeds_all: int

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return sum(array.nbytes for array in (self.seeds, *self.node_ids.values(), *self.edges.values()))

    def prepared(self, x: Mapping[str, Tensor], *, y: np.ndarray) -> TypedBatch:
        """With features and labels, on the device of ``x``."""
        device = next(iter(x.values())).device
        node_ids = {kind: torch.from_numpy(nodes).to(device) for kind, nodes in self.node_ids.items()}
        return TypedBatch(
            task=self.task,
            seeds=torch.from_numpy(self.seeds).to(device),
            node_ids=node_ids,
            x={kind: x[kind][nodes] for kind, nodes in node_ids.items()},
            edge_index={kind: edges.to(device) for kind, edges in self.edges.items()},
            y=torch.from_numpy(y[self.seeds]).to(device),
            num_seeds_all=self.num_seeds_all,
        )


class _AtOnce(Evaluator):
    """Outputs by ``run`` on everything, of which a replica says its nodes."""

    def __init__(self, graph: Graph, *, run: Any, **settings: Any) -> None:
        super().__init__(graph, **settings)
        self._run = run

    @torch.no_grad()
    def outputs(self, model: nn.Module) -> Iterator[tuple[slice, Tensor]]:
        """See ``Evaluator.outputs``."""
        equalize_statistics(model, axis=self._axis)
        yield self.own, self._run(model.eval())[self.own]


def _csc_of(edge_index: Tensor, kind: EdgeType, x: Mapping[str, Tensor]) -> Csc:
    source, _, target = kind
    sizes = (len(x[source]), len(x[target]))
    ends = [part.numpy() for part in edge_index.cpu()]
    for end, size, name in zip(ends, sizes, (source, target), strict=True):
        if len(wrong := np.flatnonzero(end >= size)):
            raise DatasetInvalidError(
                f"data[{kind}].edge_index: edge {wrong[0]} names {name} {end[wrong[0]]}; there are 0..{size - 1}"
            )
    csc = csc_of_edges(*ends, num_nodes=max(sizes))
    return Csc(csc.indptr[: sizes[1] + 1], csc.indices, num_sources=sizes[0], edge_ids=csc.edge_ids)


def _predicted_kind(data: Any) -> str:
    with_labels = [kind for kind in data.node_types if "y" in data[kind]]
    if len(with_labels) != 1:
        raise DatasetInvalidError(
            f"one kind of nodes must have labels (y); found {with_labels or 'none'} of {data.node_types}: leave the"
            " others out"
        )
    return with_labels[0]
