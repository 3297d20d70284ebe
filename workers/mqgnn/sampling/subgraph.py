"""What every sampler returns: nodes ordered by hop and the in-edges of each layer as CSR, in local numbers."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class SampledSubgraph:
    """The sampled neighbourhood of some seeds: local node ``i`` is node ``node_ids[i]`` of the graph.

    ``node_ids`` [n] starts with the seeds in their given order, then the nodes first met at hop 1, 2, …

    ``nested``: a node was expanded once. The sampled in-neighbours of local node ``v`` are
    ``indices[indptr[v]:indptr[v + 1]]``; nodes of the last hop have none, so ``indptr`` ends with the last node
    that was expanded. Edges are thereby grouped by hop, nearest first, and the block of every layer is a
    prefix of the arrays.

    Not ``nested`` (layer-wise samplers): all nodes met so far were expanded anew at every hop. Each hop has a CSR
    of its own; they lie one after the other, nearest first, and each ``indptr`` starts from 0.
    ``workers.models.blocks.block_of`` cuts both kinds.
    """

    node_ids: np.ndarray  # [n], dtype of the graph's indices
    indptr: np.ndarray  # int32 [nodes before the last hop + 1]
    indices: np.ndarray  # int32 [e], local
    num_nodes_per_hop: tuple[int, ...]  # hops + 1 entries, seeds first, adds up to n
    num_edges_per_hop: tuple[int, ...]  # hops entries, adds up to e
    edge_ids: np.ndarray | None = None  # [e] the edges' numbers in the graph, where they were asked for
    edge_weights: np.ndarray | None = None  # float32 [e]: times these, a sampled sum estimates the sum over all
    trees: np.ndarray | None = None  # int32 [n]: the seed (by position) whose disjoint subgraph a node is in
    relations: np.ndarray | None = None  # uint8 [e]: the kind of each edge, where kinds are told apart
    source_ids: np.ndarray | None = None  # [all edges] sources in the graph, where the last hop has no local numbers
    nested: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, np.ndarray))
