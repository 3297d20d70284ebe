"""Message-passing models of PyG, unchanged, and how to run them on sampled blocks without wasted rows.

``build_sampled_gnn`` gives PyG's own ``GraphSAGE`` or ``GCN``: a plain module that anyone can call on a whole graph.
``forward_blocks`` runs the same module on a sampled subgraph and computes only what the seeds need. In a subgraph
whose nodes are ordered by hop, layer l of L has as targets the nodes up to hop L−1−l and as sources those up to hop
L−l: both are prefixes, so a layer's block is a prefix of the subgraph's CSR arrays and costs nothing to cut. (PyG's own
``num_sampled_nodes_per_hop`` trims from the second layer on: it computes the outermost hop as targets and throws it
away, and ``GCNConv`` then loses the degrees of what was cut off.)

The outputs for the seeds equal those of ``model(x, edge_index)[:num_seeds]`` on the same subgraph.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv
from torch_geometric.nn.models import GCN, GraphSAGE

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

    ``num_neighbors`` [num_sources] counts the in-neighbours of each source in the graph that the layer stands for,
    which the block shows for targets only; ``GCN`` normalises with it.
    """

    indptr: Tensor  # int32 [num_targets + 1]
    indices: Tensor  # int32 [e], numbers of sources
    num_neighbors: Tensor  # int32 or int64 [num_sources]

    @property
    def num_targets(self) -> int:
        """Rows that the layer computes."""
        return len(self.indptr) - 1

    @property
    def num_sources(self) -> int:
        """Rows that the layer reads."""
        return len(self.num_neighbors)

    def adjacency(self, dtype: torch.dtype) -> Tensor:
        """The sparse CSR matrix [num_targets, num_sources] of ones."""
        ones = torch.ones(len(self.indices), dtype=dtype, device=self.indices.device)
        size = (self.num_targets, self.num_sources)
        return torch.sparse_csr_tensor(self.indptr, self.indices, ones, size=size, check_invariants=False)


def forward_blocks(
    model: nn.Module,
    x: Tensor,
    *,
    indptr: Tensor,
    indices: Tensor,
    num_nodes_per_hop: Sequence[int],
    num_edges_per_hop: Sequence[int],
) -> Tensor:
    """Outputs [num_seeds, C] of ``model`` on a sampled subgraph with features ``x`` [n, F].

    ``indptr`` [nodes before the last hop + 1] and ``indices`` [e] are the in-edges, nodes ordered by hop, seeds first
    (``workers.mqgnn.sampler``), with as many hops as the model has layers.
    """
    if not len(x):
        return x.new_zeros(0, model.out_channels)
    num_neighbors = nn.functional.pad(indptr.diff(), (0, len(x) + 1 - len(indptr)))  # none for the last hop
    nodes_up_to, edges_up_to = [*accumulate(num_nodes_per_hop)], [*accumulate(num_edges_per_hop)]
    for layer, hop in enumerate(reversed(range(len(model.convs)))):  # hop of the outermost targets
        block = Block(
            indptr=indptr[: nodes_up_to[hop] + 1],
            indices=indices[: edges_up_to[hop]],
            num_neighbors=num_neighbors[: nodes_up_to[hop + 1]],
        )
        x = apply_layer(model, x, layer=layer, block=block)
    return x


def apply_layer(model: nn.Module, x: Tensor, *, layer: int, block: Block) -> Tensor:
    """One layer of ``model``: sources ``x`` [num_sources, F_in] → targets [num_targets, F_out], as PyG's loop does."""
    convolution = model.convs[layer]
    x = _CONVOLVE[type(convolution)](convolution, x, block)
    if layer == len(model.convs) - 1:
        return x
    return model.dropout(model.act(model.norms[layer](x)))


def _convolve_sage(convolution: SAGEConv, x: Tensor, block: Block) -> Tensor:
    """PyG's own forward, on a bipartite block; a sparse adjacency keeps it from writing out one row per edge."""
    return convolution((x, x[: block.num_targets]), block.adjacency(x.dtype))


def _convolve_gcn(convolution: GCNConv, x: Tensor, block: Block) -> Tensor:
    """D^−½ (A + I) D^−½ x Wᵀ + b (Kipf & Welling, ICLR 2017, equation 2).

    ``GCNConv`` takes no bipartite input, so its formula stands here on its own parameters; sum and product are done
    in the cheaper order. A has no diagonal to begin with: ``workers.data.edges`` drops self loops.
    """
    scale = (block.num_neighbors + 1).to(x.dtype).rsqrt().unsqueeze(1)  # [num_sources, 1]
    adjacency = block.adjacency(x.dtype)

    def propagate(hidden: Tensor) -> Tensor:
        hidden = hidden * scale
        targets = hidden[: block.num_targets]
        return (adjacency @ hidden + targets) * scale[: block.num_targets]

    width_in, width_out = x.shape[1], convolution.out_channels
    sum_first = len(block.indices) * width_in + block.num_targets * width_in * width_out
    product_first = len(block.indices) * width_out + block.num_sources * width_in * width_out
    x = convolution.lin(propagate(x)) if sum_first < product_first else propagate(convolution.lin(x))
    return x + convolution.bias


_CONVOLVE: dict[type, Callable[..., Tensor]] = {SAGEConv: _convolve_sage, GCNConv: _convolve_gcn}
