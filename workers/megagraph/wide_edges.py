"""Edges of three kinds for sparse attention: those of a graph, those of an expander, and those from global nodes.

    kinds   0 … K-1   of the graph's edges (K = 1 where they are all alike)
            K         of the expander
            K + 1     from a global node of the graph to each of its nodes

Edges between nodes follow the cut, as ``workers.data.shard_edges`` numbers them. Global nodes are made anew on every
shard and never travel: to the edges they are rows after the halo, graph after graph.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from workers.data.edges import indptr_of, to_edges
from workers.data.graph import Graph
from workers.data.graph_encodings.expander import expander_edges
from workers.data.partition import NodeCut
from workers.data.shard_edges import join_edges, shard_edges
from workers.model_specs.needs import Needs
from workers.models.graph_batch import WideEdges
from workers.ops.row_edges import Halo, RowEdges

_SEED = 0  # every rank draws the same expander


def widened_edges(graph: Graph, *, needs: Needs, cut: NodeCut, shard: int) -> RowEdges:
    """The edges of ``graph`` and of its expander into the rows of ``shard``, with their kinds as types."""
    kinds = np.zeros(graph.num_edges, dtype=np.uint8)
    if needs.edge_types and graph.edge_types is not None:
        kinds = graph.edge_types
    sources, targets = _expander(graph.num_nodes, degree=needs.expander_degree)
    graph_sources, graph_targets = to_edges(graph.indptr, graph.indices)
    all_sources = np.concatenate([graph_sources, sources])
    all_targets = np.concatenate([graph_targets, targets])
    all_kinds = np.concatenate([kinds, np.full(len(sources), max(1, needs.edge_types), dtype=np.uint8)])
    order = np.lexsort((all_sources, all_targets))
    both = replace(
        graph,
        indptr=indptr_of(all_targets, num_targets=graph.num_nodes),
        indices=all_sources[order],
        edge_types=all_kinds[order],
    )
    return shard_edges(both, cut=cut, shard=shard)


def join_wide_edges(parts: Sequence[RowEdges], *, needs: Needs, num_shards: int) -> WideEdges:
    """The widened edges of the graphs of a micro-batch, and into each row those from its graph's global nodes."""
    joined = join_edges(parts, num_shards=num_shards)
    if joined.types is None:  # there is no graph
        joined = replace(joined, types=torch.empty(0, dtype=torch.int64))
    if not needs.num_global:
        return WideEdges(edges=joined, halo=joined.halo)
    device = joined.indptr.device
    sizes = torch.tensor([part.num_rows for part in parts], dtype=torch.int64, device=device)
    graphs = torch.repeat_interleave(sizes)
    own = torch.arange(needs.num_global, device=device)
    first = joined.num_sources
    from_globals = (first + graphs.unsqueeze(1) * needs.num_global + own).flatten()  # [n G]
    rows = torch.arange(joined.num_rows, device=device)
    targets = torch.cat([joined.targets, rows.repeat_interleave(needs.num_global)])
    order = targets.argsort(stable=True)
    kinds = torch.full_like(from_globals, max(1, needs.edge_types) + 1)
    edges = RowEdges(
        indptr=joined.indptr + needs.num_global * torch.arange(joined.num_rows + 1, device=device),
        sources=torch.cat([joined.sources, from_globals])[order],
        types=torch.cat([joined.types, kinds])[order],
        halo=_with_globals(joined.halo, count=len(parts) * needs.num_global),
    )
    return WideEdges(edges=edges, halo=joined.halo)


def _expander(num_nodes: int, *, degree: int) -> tuple[np.ndarray, np.ndarray]:
    if not degree:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    return expander_edges(num_nodes, degree=degree, seed=_SEED)


def _with_globals(halo: Halo | None, *, count: int) -> Halo:
    if halo is None:
        return Halo(send=(), receive=(count,))
    return Halo(send=halo.send, receive=(*halo.receive, count))
