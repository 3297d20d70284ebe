"""Exact scores of a sampled GNN: every node with all its neighbours, one layer after the other, shared by replicas.

Layer by layer the cost is one pass over the edges per layer, where per-node neighbourhoods would overlap and explode
(the idea of PyG's ``BasicGNN.inference``). Each replica computes a run of nodes of about equal work, chunk by chunk;
hidden rows go straight into one matrix of all nodes, whose runs the replicas exchange, and logits are counted and
dropped (for ROC-AUC and AP a replica keeps those of its run). The result is that of
``model(x, edge_index)`` on the whole graph: what a user of the exported model will see.

Alive at most, beside the pages of the memory-mapped graph (N nodes, largest in-degree D, L layers, H hidden size, I and
O the widths of a layer's input and output, W the larger of them, b bytes per number, C = ``CHUNK_BYTES``; V, the nodes
and edges of a chunk, is at most max(C / max(W·b, 48), D + 1), or max(C / 48, D + 1) where all rows fit into C):

    min(L − 1, 2) · N · H · b         the hidden matrices of all nodes, of the layer before and of this one
    min(N, V) · (2 I + 3 O) · b       a chunk of GraphSAGE: inputs and sums, then outputs; 5 W in place of the bracket
                                      for others. A single node is always one chunk, so that of a hub may exceed C
    48 · V                            the edges of the chunk while they are sampled and summed; more where attention
                                      keeps numbers of every edge (``edge_bytes_of``), of which V then has fewer
    16 · N                            work before each node, the sampler's table (int64 both); as long as the
                                      ``Evaluator`` lives

Where N·H is too large, evaluating on part of the nodes would have to come.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import Graph
from workers.models.blocks import Block
from workers.models.sampled import apply_layer, edge_bytes_of, enter, width_after
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.named import build_sampler
from workers.mqgnn.sampling.neighbors import ALL_NEIGHBORS
from workers.training.metrics import Scoreboard
from workers.training.objective import Objective

CHUNK_BYTES = 16 * 2**20  # rows of one chunk: far above the cost of a call, far below what training holds
_EDGE_BYTES = 48  # of one edge while its chunk is sampled (int64 position, two numbers, two copies) and summed


Rows = slice | np.ndarray  # numbers of nodes


def score_outputs(
    outputs: Iterator[tuple[Rows, Tensor]], *, graph: Graph, objective: Objective, axis: Axis, device: torch.device
) -> dict[str, float]:
    """``{split}_{metric}`` of what all replicas on ``axis`` say of nodes of ``graph``. Collective."""
    board = Scoreboard.of(objective, device=device)
    for nodes, logits in outputs:
        y, split = (torch.from_numpy(array[nodes]).to(device) for array in (graph.y, graph.split))
        board.add(logits, y=y, split=split)
    return board.scores(axis)


class Evaluator:
    """Scores the predictions for all nodes, together with the other replicas on ``axis``."""

    def __init__(
        self,
        graph: Graph,
        *,
        axis: Axis,
        device: torch.device,
        dtype: torch.dtype,
        chunk_bytes: int = CHUNK_BYTES,
        has_relations: bool = False,
    ) -> None:
        """With ``has_relations``, they are the edge types of ``graph`` (``sampled_graph``)."""
        self._graph, self._axis = graph, axis
        self._device, self._dtype, self._chunk_bytes = device, dtype, chunk_bytes
        self._sampler = build_sampler(csc_of(graph), name="uniform", fanouts=(ALL_NEIGHBORS,))
        self._has_relations = has_relations
        self._work = graph.indptr + np.arange(graph.num_nodes + 1)  # rows read by all nodes before this one
        shares = self._work[-1] * np.arange(axis.size + 1) // axis.size
        self._bounds = np.searchsorted(self._work, shares).tolist()
        self.own = slice(*self._bounds[axis.index : axis.index + 2])  # this replica's nodes

    @torch.inference_mode()
    def scores(self, model: nn.Module, *, objective: Objective) -> dict[str, float]:
        """``{split}_{metric}`` of the metrics of ``objective`` over the whole graph, the same on all replicas.

        Collective. Leaves ``model`` in evaluation mode.
        """
        outputs = self.outputs(model)
        return score_outputs(outputs, graph=self._graph, objective=objective, axis=self._axis, device=self._device)

    @torch.inference_mode()
    def outputs(self, model: nn.Module) -> Iterator[tuple[slice, Tensor]]:
        """What ``model`` says of this replica's nodes, chunk by chunk: (nodes, [len(nodes), C]).

        Collective. Leaves ``model`` in evaluation mode.
        """
        model.eval()
        hidden: Tensor | None = None
        for layer in range(model.num_layers - 1):
            hidden = self._hidden(model, hidden, layer=layer)
        last = model.num_layers - 1
        for nodes in self._chunks(model, layer=last):
            yield nodes, self._outputs(model, hidden, layer=last, nodes=nodes)

    @torch.no_grad()
    def all_outputs(self, model: nn.Module, *, width: int) -> Tensor:
        """What ``model`` says of all nodes, [N, width], on every replica. Collective."""
        everything = torch.empty(self._graph.num_nodes, width, dtype=self._dtype, device=self._device)
        for nodes, outputs in self.outputs(model):
            everything[nodes] = outputs
        return self.share(everything)

    def _hidden(self, model: nn.Module, hidden: Tensor | None, *, layer: int) -> Tensor:
        """What ``layer`` makes of all nodes [N, F_out]: this replica's run, then everybody's."""
        width = width_after(model, layer)
        everything = torch.empty(self._graph.num_nodes, width, dtype=self._dtype, device=self._device)
        for nodes in self._chunks(model, layer=layer):
            everything[nodes] = self._outputs(model, hidden, layer=layer, nodes=nodes)
        return self.share(everything)

    def share(self, everything: Tensor) -> Tensor:
        """``everything`` [N, F], of which each replica has filled its run, filled on all. Collective."""
        for owner, (begin, end) in enumerate(itertools.pairwise(self._bounds)):
            if begin < end:
                self._axis.broadcast_in_place(everything[begin:end], source=owner)
        return everything

    def _outputs(self, model: nn.Module, hidden: Tensor | None, *, layer: int, nodes: slice) -> Tensor:
        """What ``layer`` makes of ``nodes``: [len(nodes), F_out]."""
        sources, block = self._block(nodes)
        inputs = self._inputs(hidden, nodes=sources)
        return apply_layer(model, inputs if layer else enter(model, inputs), layer=layer, block=block)

    def _block(self, nodes: slice) -> tuple[np.ndarray, Block]:
        """The numbers of all that ``nodes`` hear from, themselves first, and the edges between them."""
        subgraph = self._sampler.sample(np.arange(nodes.start, nodes.stop), key=0)
        block = Block(
            indptr=torch.from_numpy(subgraph.indptr).to(self._device),
            indices=torch.from_numpy(subgraph.indices).to(self._device),
            degrees=torch.from_numpy(self._graph.in_degrees(subgraph.node_ids)).to(self._device),
            **self._types_of(nodes, subgraph.node_ids),
        )
        return subgraph.node_ids, block

    def _types_of(self, rows: slice, nodes: np.ndarray) -> dict[str, Tensor]:
        """Types of ``nodes``, and relations of all in-edges of ``rows``, which lie in the graph in one piece."""
        graph = self._graph
        if not self._has_relations:
            return {}
        edges = slice(int(graph.indptr[rows.start]), int(graph.indptr[rows.stop]))
        return {
            "node_types": torch.from_numpy(graph.node_types[nodes]).to(self._device),
            "relations": torch.from_numpy(graph.edge_types[edges]).to(self._device),
        }

    def _inputs(self, hidden: Tensor | None, *, nodes: np.ndarray) -> Tensor:
        """Rows [len(nodes), F_in] of the hidden matrix, or of the features before the first layer."""
        if hidden is None:
            return torch.from_numpy(self._graph.features.gather(nodes)).to(self._device, self._dtype)
        return hidden[torch.from_numpy(nodes).to(self._device)]

    def _chunks(self, model: nn.Module, *, layer: int) -> Iterator[slice]:
        """This replica's nodes in runs whose rows and edges fit the chunk size; a single node always does."""
        width_in = model.in_channels if layer == 0 else width_after(model, layer - 1)
        row_bytes = max(width_in, width_after(model, layer)) * self._dtype.itemsize
        return self._runs(row_bytes=row_bytes, edge_bytes=edge_bytes_of(model, layer, dtype=self._dtype))

    def _runs(self, *, row_bytes: int, edge_bytes: int) -> Iterator[slice]:
        """The same for rows of ``row_bytes`` and edges of ``edge_bytes`` beside their sampling."""
        low, end = self.own.start, self.own.stop
        edge_bytes += _EDGE_BYTES
        all_rows_fit = self._graph.num_nodes * row_bytes <= self._chunk_bytes
        limit = self._chunk_bytes // (edge_bytes if all_rows_fit else max(row_bytes, edge_bytes))
        while low < end:
            fitting = int(np.searchsorted(self._work, self._work[low] + limit, side="right")) - 1
            high = min(end, max(fitting, low + 1))
            yield slice(low, high)
            low = high
