"""The edges of one layer between sampled nodes, and the sums that convolutions ask of them.

In a subgraph whose nodes are ordered by hop, layer l of L has as targets the nodes up to hop L−1−l and as sources those
up to hop L−l: both are prefixes, so a layer's block is a prefix of the subgraph's CSR arrays and costs nothing to cut.
The block of the first layer may name its sources by their numbers in the graph instead (``InPlace``): then their
features are read where they are, and the outermost hop is never gathered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from workers.ops.neighbours import Neighbours, SparseRows


@dataclass(frozen=True, eq=False)
class InPlace:
    """The features of all N nodes on the CPU, to be read by number. Made once for a run.

    ``degrees`` [N] are the in-degrees in the graph.
    """

    features: Tensor | SparseRows  # [N, F]
    degrees: Tensor  # int32 or int64 [N]
    _inverse_roots: dict[float, Tensor] = field(default_factory=dict)

    def inverse_roots(self, *, loops: float, dtype: torch.dtype) -> Tensor:
        """As the function below, of all nodes, computed once."""
        if loops not in self._inverse_roots:
            self._inverse_roots[loops] = inverse_roots(self.degrees, loops=loops, dtype=dtype)
        return self._inverse_roots[loops]


def inverse_roots(degrees: Tensor, *, loops: float, dtype: torch.dtype) -> Tensor:
    """(degree + loops)^−½, 0 where there is nothing to be the root of."""
    found = (degrees + loops).to(dtype).rsqrt()
    return found if loops else found.masked_fill(degrees == 0, 0.0)


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer, from sources to targets; the targets are the first of the sources, or ``own_rows``.

    ``degrees`` [num_sources] are in-degrees of the sources in the whole graph; the block may show fewer neighbours.
    Without ``own_rows`` a source is a node of the block; with them, of the graph.
    """

    indptr: Tensor  # int32 [num_targets + 1]
    indices: Tensor  # int32 (int64 where the graph's numbers are) [e], numbers of sources
    degrees: Tensor  # int32 or int64 [num_sources]
    edge_weights: Tensor | None = None  # float32 [e]: times these, a sampled sum estimates the sum over all
    in_place: InPlace | None = None
    own_rows: Tensor | None = None  # [num_targets], the dtype of indices; only in place
    node_types: Tensor | None = None  # [num_sources], where nodes and edges are told apart
    relations: Tensor | None = None  # [e]

    @property
    def num_targets(self) -> int:
        """Rows that the layer computes."""
        return len(self.indptr) - 1

    @property
    def num_sources(self) -> int:
        """Rows that the layer reads, or could read."""
        return len(self.degrees)

    @property
    def target_degrees(self) -> Tensor:
        """In-degrees of the targets in the whole graph [num_targets]."""
        return self.degrees[: self.num_targets] if self.own_rows is None else self.degrees[self.own_rows.long()]

    def plain(self) -> Neighbours:
        """The bare edges."""
        return Neighbours(self.indptr, self.indices, self.num_sources, own_rows=self.own_rows)

    def means(self, dtype: torch.dtype) -> Neighbours:
        """The mean over a target's neighbours; with edge weights, an estimate of that over all of them."""
        counts = self.indptr.diff() if self.edge_weights is None else self.target_degrees
        return self._neighbours(target_scale=1 / counts.clamp(min=1).to(dtype))

    def sums(self, dtype: torch.dtype, *, own_scale: float) -> Neighbours:
        """An estimate of the sum over all neighbours, and the own row ``own_scale`` times."""
        own = torch.full((self.num_targets,), own_scale, dtype=dtype, device=self.indptr.device)
        return self._neighbours(target_scale=self._per_sample(dtype), own_scale=own)

    def normalized(self, dtype: torch.dtype, *, loops: float) -> Neighbours:
        """D^−½ (A + loops · I) D^−½, D = in-degree + loops, of the whole graph (Kipf & Welling, ICLR 2017, equation 2).

        A row of A is estimated from its sample. A has no diagonal: ``workers.data.edges`` drops self loops.
        """
        if self.in_place is not None:
            scale = self.in_place.inverse_roots(loops=loops, dtype=dtype)
        else:
            scale = inverse_roots(self.degrees, loops=loops, dtype=dtype)
        targets = scale[: self.num_targets] if self.own_rows is None else scale[self.own_rows.long()]
        per_sample = self._per_sample(dtype)
        return self._neighbours(
            source_scale=scale,
            target_scale=targets if per_sample is None else targets * per_sample,
            own_scale=loops * targets.square() if loops else None,
        )

    def _per_sample(self, dtype: torch.dtype) -> Tensor | None:
        """Times these, a target's sum over its sample estimates that over all neighbours [num_targets]."""
        if self.edge_weights is not None:
            return None
        num_sampled = self.indptr.diff().clamp(min=1)  # an isolated node has nothing to weight
        return self.target_degrees.to(dtype) / num_sampled

    def _neighbours(self, **scales: Tensor | None) -> Neighbours:
        return Neighbours(
            self.indptr,
            self.indices,
            self.num_sources,
            weights=self.edge_weights,
            own_rows=self.own_rows,
            **scales,
        )


@dataclass(frozen=True, eq=False)
class SampledEdges:
    """The edges of a sampled subgraph, from which the block of each layer is cut (``workers.mqgnn.minibatch``)."""

    node_ids: Tensor  # [n] numbers in the graph
    degrees: Tensor  # [n] in-degrees in the graph
    indptr: Tensor  # int32 [nodes before the last hop + 1]
    indices: Tensor  # int32 [e]
    num_nodes_per_hop: Sequence[int]
    num_edges_per_hop: Sequence[int]
    edge_weights: Tensor | None = None  # float32 [e]
    source_ids: Tensor | None = None  # [e], where the last hop's nodes have no numbers of their own
    node_types: Tensor | None = None  # [n], where nodes and edges are told apart
    relations: Tensor | None = None  # [e]
    nested: bool = True

    @property
    def num_layers(self) -> int:
        """One per hop."""
        return len(self.num_edges_per_hop)

    def num_nodes(self, hop: int) -> int:
        """Nodes up to ``hop``; the seeds are hop 0."""
        return sum(self.num_nodes_per_hop[: hop + 1])

    def block(self, hop: int, *, in_place: InPlace | None = None) -> Block:
        """The edges into the nodes up to ``hop``; where features are in place, sources are numbers of the graph."""
        rows, edges = block_of(self.num_nodes_per_hop, self.num_edges_per_hop, hop=hop, nested=self.nested)
        assert in_place is None or self.source_ids is not None
        return Block(
            indptr=self.indptr[rows],
            indices=self.indices[edges] if in_place is None else self.source_ids[edges],
            degrees=self.degrees[: self.num_nodes(hop + 1)] if in_place is None else in_place.degrees,
            edge_weights=None if self.edge_weights is None else self.edge_weights[edges],
            in_place=in_place,
            own_rows=None if in_place is None else self.node_ids[: self.num_nodes(hop)],
            node_types=None if self.node_types is None else self.node_types[: self.num_nodes(hop + 1)],
            relations=None if self.relations is None else self.relations[edges],
        )


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
