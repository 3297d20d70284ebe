"""Exact accuracy of a sampled GNN: every node with all its neighbours, one layer after the other, shared by replicas.

Layer by layer the cost is one pass over the edges per layer, where per-node neighbourhoods would overlap and explode
(the idea of PyG's ``BasicGNN.inference``). Each replica computes a run of nodes of about equal work; between layers
the runs are exchanged, so every replica holds one hidden matrix [N, H] at a time. Where that is too large, evaluating
on part of the nodes would have to come.

The result is that of ``model(x, edge_index)`` on the whole graph: what a user of the exported model will see.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from workers.data.graph import Graph
from workers.models.sampled import Block, apply_layer
from workers.mqgnn.exchange import Communicator
from workers.mqgnn.sampler import ALL_NEIGHBORS, NeighborSampler
from workers.training.evaluation import count_correct

_CHUNK_BYTES = 64 * 2**20  # input rows gathered at a time: far above the cost of a call, far below what training holds


class Evaluator:
    """Counts correct predictions of all splits. ``rank`` is this replica's place in ``communicator``."""

    def __init__(
        self,
        graph: Graph,
        *,
        rank: int,
        communicator: Communicator,
        device: torch.device,
        dtype: torch.dtype,
        chunk_bytes: int = _CHUNK_BYTES,
    ) -> None:
        self._graph, self._rank, self._communicator = graph, rank, communicator
        self._device, self._dtype, self._chunk_bytes = device, dtype, chunk_bytes
        self._sampler = NeighborSampler(graph, fanouts=(ALL_NEIGHBORS,))
        self._work = graph.indptr + np.arange(graph.num_nodes + 1)  # rows read by all nodes before this one
        shares = self._work[-1] * np.arange(communicator.world_size + 1) // communicator.world_size
        self._bounds = np.searchsorted(self._work, shares).tolist()
        self._num_neighbors = torch.from_numpy(np.diff(graph.indptr)).to(device)

    @torch.inference_mode()
    def count(self, model: nn.Module) -> Tensor:
        """Correct and total predictions per split over the whole graph, int64 [3, 2], the same on all replicas.

        Collective. Leaves ``model`` in evaluation mode.
        """
        model.eval()
        begin, end = self._bounds[self._rank : self._rank + 2]
        hidden: Tensor | None = None
        for layer in range(len(model.convs)):
            outputs = [
                self._outputs(model, hidden, layer=layer, nodes=nodes) for nodes in self._chunks(model, layer=layer)
            ]
            mine = torch.cat(outputs) if outputs else None
            if layer < len(model.convs) - 1:
                hidden = self._share(mine, width=model.convs[layer].out_channels)
        counts = torch.zeros(3, 2, dtype=torch.int64, device=self._device)
        if mine is not None:
            y = torch.from_numpy(self._graph.y[begin:end]).to(self._device)
            split = torch.from_numpy(self._graph.split[begin:end]).to(self._device)
            counts += count_correct(mine, y=y, split=split)
        self._communicator.sum_in_place([counts])
        return counts

    def _chunks(self, model: nn.Module, *, layer: int) -> Iterator[np.ndarray]:
        """This replica's nodes, in runs whose input rows fit the chunk size; a single node always does."""
        begin, end = self._bounds[self._rank : self._rank + 2]
        row_bytes = _width_in(model, layer=layer) * torch.empty(0, dtype=self._dtype).element_size()
        if self._graph.num_nodes * row_bytes <= self._chunk_bytes:
            cuts = [begin, end]
        else:
            cuts, limit = [begin], self._chunk_bytes // row_bytes
            while cuts[-1] < end:
                fitting = int(np.searchsorted(self._work, self._work[cuts[-1]] + limit, side="right")) - 1
                cuts.append(min(end, max(fitting, cuts[-1] + 1)))
        return (np.arange(low, high) for low, high in itertools.pairwise(cuts) if low < high)

    def _outputs(self, model: nn.Module, hidden: Tensor | None, *, layer: int, nodes: np.ndarray) -> Tensor:
        """What ``layer`` makes of ``nodes``: [len(nodes), F_out]."""
        subgraph = self._sampler.sample(nodes, key=0)
        sources = torch.from_numpy(subgraph.node_ids).to(self._device)
        if hidden is None:
            gathered = torch.from_numpy(self._graph.features.gather(subgraph.node_ids))
            x = gathered.to(self._device, self._dtype)
        else:
            x = hidden[sources]
        block = Block(
            indptr=torch.from_numpy(subgraph.indptr).to(self._device),
            indices=torch.from_numpy(subgraph.indices).to(self._device),
            num_neighbors=self._num_neighbors[sources],
        )
        return apply_layer(model, x, layer=layer, block=block)

    def _share(self, mine: Tensor | None, *, width: int) -> Tensor:
        """The rows of all nodes [N, width] from each replica's own."""
        everything = torch.empty(self._graph.num_nodes, width, dtype=self._dtype, device=self._device)
        for owner, (begin, end) in enumerate(itertools.pairwise(self._bounds)):
            if owner == self._rank and mine is not None:
                everything[begin:end] = mine
            if begin < end:
                self._communicator.broadcast_in_place(everything[begin:end], source=owner)
        return everything


def _width_in(model: nn.Module, *, layer: int) -> int:
    return int(model.in_channels if layer == 0 else model.convs[layer - 1].out_channels)
