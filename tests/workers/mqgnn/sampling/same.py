"""Subgraphs held against each other, and read back in the numbers of the graph."""

import numpy as np

from workers.models.blocks import block_of
from workers.mqgnn.sampling.subgraph import SampledSubgraph


def assert_same(ours: SampledSubgraph, theirs: SampledSubgraph) -> None:
    """Equal in every array, its type, and every count; edge weights up to rounding."""
    for name, value in vars(theirs).items():
        found = getattr(ours, name)
        if not isinstance(value, np.ndarray):
            assert found == value, name
            continue
        assert found.dtype == value.dtype, name
        if name == "edge_weights":
            np.testing.assert_allclose(found, value, rtol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(found, value, err_msg=name)


def edges_of(subgraph: SampledSubgraph, *, hop: int | None = None) -> list[tuple[int, int]]:
    """(source, target) in the numbers of the graph: of the block into nodes up to ``hop``, else of the outermost."""
    hop = len(subgraph.num_edges_per_hop) - 1 if hop is None else hop
    counts = subgraph.num_nodes_per_hop, subgraph.num_edges_per_hop
    rows, edges = block_of(*counts, hop=hop, nested=subgraph.nested)
    targets = np.repeat(np.arange(rows.stop - rows.start - 1), np.diff(subgraph.indptr[rows]))
    sources = subgraph.node_ids[subgraph.indices[edges]]
    return [*zip(sources.tolist(), subgraph.node_ids[targets].tolist(), strict=True)]
