"""What flows through the stages: a sampled subgraph, then the prepared mini-batch; frozen, and aware of their bytes."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from workers.data.graph import Graph
from workers.models.blocks import InPlace, SampledEdges
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.mqgnn.seed_order import BatchTask


@dataclass(frozen=True, eq=False)
class SampledBatch:
    """The output of the sample stage: this replica's seeds of a step and the subgraph of ``graph`` around them."""

    task: BatchTask
    seeds: np.ndarray  # [B] node numbers of the graph
    graph: Graph  # the version that was sampled
    subgraph: SampledSubgraph
    num_seeds_all: int  # seeds of the step over all replicas

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays held."""
        return self.seeds.nbytes + self.subgraph.nbytes


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """Everything one step computes with. Local node ``i`` is node ``node_ids[i]`` of the graph; the seeds come first.

    ``indptr`` and ``indices`` are those of the ``SampledSubgraph``, nodes and edges ordered by hop, and
    ``workers.models.sampled`` cuts each layer's block out of them. ``copied`` is set where the tensors are
    still on their way to a CUDA device: call ``wait`` before use.
    """

    task: BatchTask
    seeds: Tensor  # int64 [B]
    node_ids: Tensor  # [n], int32 or int64 like the graph's indices
    degrees: Tensor  # [n], in-degrees in the whole graph, same dtype
    x: Tensor | InPlace  # [n, F], or where the features of all nodes are, of which a mini-batch holds nothing
    y: Tensor  # int64 [B], labels of the seeds
    indptr: Tensor  # int32 [nodes before the last hop + 1]
    indices: Tensor  # int32 [e], or without the last hop's edges where there are ``source_ids``
    num_sampled_nodes_per_hop: tuple[int, ...]
    num_sampled_edges_per_hop: tuple[int, ...]
    num_seeds_all: int
    edge_weights: Tensor | None = None  # float32 [e], where neighbours were sampled by importance
    source_ids: Tensor | None = None  # [e] sources in the graph, where the last hop's nodes have no local numbers
    node_types: Tensor | None = None  # uint8 [n], where nodes and edges are told apart
    relations: Tensor | None = None  # uint8 [e]
    nested: bool = True  # see ``SampledSubgraph``
    copied: torch.cuda.Event | None = None

    @property
    def edges(self) -> SampledEdges:
        """From which the block of each layer is cut."""
        return SampledEdges(
            node_ids=self.node_ids,
            degrees=self.degrees,
            indptr=self.indptr,
            indices=self.indices,
            num_nodes_per_hop=self.num_sampled_nodes_per_hop,
            num_edges_per_hop=self.num_sampled_edges_per_hop,
            edge_weights=self.edge_weights,
            source_ids=self.source_ids,
            node_types=self.node_types,
            relations=self.relations,
            nested=self.nested,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors held."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    def to_cuda(self, device: torch.device, *, stream: torch.cuda.Stream) -> "MiniBatch":
        """Start copying to ``device`` on ``stream`` from page-locked memory, without waiting for the end."""
        with torch.cuda.stream(stream):
            moved = {
                name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in self._tensors().items()
            }
            return replace(self, **moved, copied=stream.record_event())

    def wait(self) -> None:
        """Make the current CUDA stream wait for the copy, and keep the memory until that stream is done with it."""
        if self.copied is None:
            return
        current = torch.cuda.current_stream(self.seeds.device)
        current.wait_event(self.copied)
        for tensor in self._tensors().values():
            tensor.record_stream(current)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
