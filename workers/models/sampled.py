"""Message-passing models of PyG, and how to run them on sampled blocks without wasted rows.

``build_sampled_gnn`` gives PyG's own ``GraphSAGE`` or ``GCN``: a plain module that anyone can call on a whole graph.
``forward_blocks`` runs the same module on a sampled subgraph and computes only what the seeds need. In a subgraph
whose nodes are ordered by hop, layer l of L has as targets the nodes up to hop L−1−l and as sources those up to hop
L−l: both are prefixes, so a layer's block is a prefix of the subgraph's CSR arrays and costs nothing to cut. (PyG's own
``num_sampled_nodes_per_hop`` trims from the second layer on: it computes the outermost hop as targets and throws it
away, and ``GCNConv`` then loses the degrees of what was cut off.)

What the outputs for the seeds equal: for ``GraphSAGE`` those of ``model(x, edge_index)[:num_seeds]`` on the same
subgraph. ``GCN`` sums over neighbours and normalises by degrees, so on the subgraph it would be another function than
on the graph; here it knows the degrees of the graph and weights each sampled sum up to all neighbours. With either
model a layer's aggregation is in expectation that of the whole graph, and with all neighbours the outputs are exactly
those of ``model(x, edge_index)`` there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.models import GCN, GraphSAGE

from workers.ops.counter_dropout import drop
from workers.spec import SampledGNNSpec

_CLASSES = {"graphsage": GraphSAGE, "gcn": GCN}


def build_sampled_gnn(spec: SampledGNNSpec, *, num_features: int, num_classes: int) -> nn.Module:
    """PyG's ``GraphSAGE`` (mean) or ``GCN`` with one layer per fanout, ReLU and dropout between them."""
    return _CLASSES[spec.name](
        in_channels=num_features,
        hidden_channels=spec.hidden_size,
        num_layers=spec.num_layers,
        out_channels=num_classes,
        dropout=spec.dropout,
    )


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer, from sources to targets; the targets are the first of the sources.

    ``degrees`` [num_sources] are in-degrees of the sources in the whole graph; the block may show fewer neighbours.
    """

    indptr: Tensor  # int32 [num_targets + 1]
    indices: Tensor  # int32 [e], numbers of sources
    degrees: Tensor  # int32 or int64 [num_sources]
    edge_weights: Tensor | None = None  # float32 [e]: times these, a sampled sum estimates the sum over all

    @property
    def num_targets(self) -> int:
        """Rows that the layer computes."""
        return len(self.indptr) - 1

    @property
    def num_sources(self) -> int:
        """Rows that the layer reads."""
        return len(self.degrees)

    def weights(self, dtype: torch.dtype) -> Tensor:
        """[num_targets, 1]: times these, a row of ``adjacency`` sums up to an estimate over all of its neighbours."""
        if self.edge_weights is not None:
            return torch.ones(self.num_targets, 1, dtype=dtype, device=self.indices.device)
        return self._degrees_per_sampled(dtype)

    def _degrees_per_sampled(self, dtype: torch.dtype) -> Tensor:
        num_sampled = self.indptr.diff().clamp(min=1)  # an isolated node has nothing to weight
        return (self.degrees[: self.num_targets].to(dtype) / num_sampled).unsqueeze(1)

    def adjacency(self, dtype: torch.dtype) -> Tensor:
        """The sparse CSR matrix [num_targets, num_sources] of edge weights, or ones."""
        if self.edge_weights is not None:
            return self._csr(self.edge_weights.to(dtype))
        return self._csr(torch.ones(len(self.indices), dtype=dtype, device=self.indices.device))

    def adjacency_for_means(self, dtype: torch.dtype) -> Tensor:
        """As ``adjacency``, for those who divide a row's sum by the number of its entries."""
        if self.edge_weights is None:
            return self.adjacency(dtype)
        num_sampled = self.indptr.diff()
        per_entry = (1 / self._degrees_per_sampled(dtype)).flatten().repeat_interleave(num_sampled)
        return self._csr(self.edge_weights.to(dtype) * per_entry)

    def _csr(self, values: Tensor) -> Tensor:
        size = (self.num_targets, self.num_sources)
        return torch.sparse_csr_tensor(self.indptr, self.indices, values, size=size, check_invariants=False)


def block_of(
    num_nodes_per_hop: Sequence[int], num_edges_per_hop: Sequence[int], *, hop: int, nested: bool
) -> tuple[slice, slice]:
    """Where the edges into the nodes up to ``hop`` (0: the seeds) are: (part of ``indptr``, part of ``indices``).

    ``nested``: nodes were expanded once, so that every block is a prefix; else each hop has a CSR of its own.
    """
    nodes, edges = [*accumulate(num_nodes_per_hop)], [0, *accumulate(num_edges_per_hop)]
    if nested:
        return slice(0, nodes[hop] + 1), slice(0, edges[hop + 1])
    first = sum(nodes[:hop]) + hop
    return slice(first, first + nodes[hop] + 1), slice(edges[hop], edges[hop + 1])


def forward_blocks(
    model: nn.Module,
    x: Tensor,
    *,
    node_ids: Tensor,
    degrees: Tensor,
    indptr: Tensor,
    indices: Tensor,
    num_nodes_per_hop: Sequence[int],
    num_edges_per_hop: Sequence[int],
    edge_weights: Tensor | None = None,
    nested: bool = True,
    draw: int = 0,
) -> Tensor:
    """Outputs [num_seeds, C] of ``model`` on a sampled subgraph with features ``x`` [n, F].

    ``indptr`` [nodes before the last hop + 1] and ``indices`` [e] are the in-edges, nodes ordered by hop, seeds first
    (``workers.mqgnn.sampling.subgraph``), with as many hops as the model has layers. ``degrees`` [n] are those in the
    whole graph; ``edge_weights`` [e] come with samples by importance. In training the hidden state of a node is dropped
    by its number in the graph (``node_ids`` [n]), the layer and ``draw``, at the rate of the model's own dropout:
    whoever computes the node in this draw drops the same of it.
    """
    if not len(x):
        return x.new_zeros(0, model.out_channels)
    nodes_up_to = [*accumulate(num_nodes_per_hop)]
    for layer, hop in enumerate(reversed(range(len(model.convs)))):  # hop of the outermost targets
        rows, edges = block_of(num_nodes_per_hop, num_edges_per_hop, hop=hop, nested=nested)
        block = Block(
            indptr=indptr[rows],
            indices=indices[edges],
            degrees=degrees[: nodes_up_to[hop + 1]],
            edge_weights=None if edge_weights is None else edge_weights[edges],
        )
        x = apply_layer(model, x, layer=layer, block=block)
        if model.training and hop:
            x = drop(x, p=model.dropout.p, site=layer, node_ids=node_ids[: len(x)], draw=draw)
    return x


def apply_layer(model: nn.Module, x: Tensor, *, layer: int, block: Block) -> Tensor:
    """One layer of ``model``: sources ``x`` [num_sources, F_in] → targets [num_targets, F_out]; nothing is dropped."""
    convolution = model.convs[layer]
    x = _CONVOLVE[type(convolution)](convolution, x, block)
    if layer == len(model.convs) - 1:
        return x
    return model.act(model.norms[layer](x))


def _convolve_sage(convolution: SAGEConv, x: Tensor, block: Block) -> Tensor:
    """PyG's own forward, on a bipartite block; a sparse adjacency keeps it from writing out one row per edge."""
    return convolution((x, x[: block.num_targets]), block.adjacency_for_means(x.dtype))


def _convolve_gcn(convolution: GCNConv, x: Tensor, block: Block) -> Tensor:
    """D^−½ (A + I) D^−½ x Wᵀ + b (Kipf & Welling, ICLR 2017, equation 2), D and A those of the whole graph.

    A row of A is estimated from its sample (``Block.weights``). ``GCNConv`` takes no bipartite input, so its formula
    stands here on its own parameters; sum and product are done in the cheaper order. A has no diagonal to begin with:
    ``workers.data.edges`` drops self loops.
    """
    scale = (block.degrees + 1).to(x.dtype).rsqrt().unsqueeze(1)  # [num_sources, 1]
    adjacency, weights = block.adjacency(x.dtype), block.weights(x.dtype)

    def propagate(hidden: Tensor) -> Tensor:
        hidden = hidden * scale
        targets = hidden[: block.num_targets]
        return (adjacency @ hidden * weights + targets) * scale[: block.num_targets]

    width_in, width_out = x.shape[1], convolution.out_channels
    sum_first = len(block.indices) * width_in + block.num_targets * width_in * width_out
    product_first = len(block.indices) * width_out + block.num_sources * width_in * width_out
    x = convolution.lin(propagate(x)) if sum_first < product_first else propagate(convolution.lin(x))
    return x + convolution.bias


_CONVOLVE: dict[type, Callable[..., Tensor]] = {SAGEConv: _convolve_sage, GCNConv: _convolve_gcn}
