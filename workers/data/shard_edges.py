"""The edges into the rows of one shard, in the shard's own numbers, and the rows that it and the others exchange.

Every rank reads the whole graph (a mapped file) and finds by itself what it needs and what is needed of it: one pass
over the edges, no message. Both ends list the rows that travel in the order of their places, so they agree.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from workers.data.graph import Graph
from workers.data.partition import NodeCut
from workers.ops.row_edges import Halo, RowEdges


def shard_edges(graph: Graph, *, cut: NodeCut, shard: int) -> RowEdges:
    """The edges into the rows of ``shard``, each row's in the order of the data set's node numbers."""
    nodes, starts = cut.nodes(shard), cut.starts
    degrees = graph.indptr[nodes + 1] - graph.indptr[nodes]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    positions = np.repeat(graph.indptr[nodes] - indptr[:-1], degrees) + np.arange(indptr[-1])
    places = cut.place[graph.indices[positions]]  # of the sources
    own = (places >= starts[shard]) & (places < starts[shard + 1])
    needed = np.unique(places[~own])
    sources = np.where(own, places - starts[shard], len(nodes) + np.searchsorted(needed, places))
    receive = np.diff(np.searchsorted(needed, starts))
    return RowEdges(
        indptr=torch.from_numpy(indptr),
        sources=torch.from_numpy(sources),
        types=None if graph.edge_types is None else torch.from_numpy(graph.edge_types[positions].astype(np.int64)),
        halo=Halo(send=_needed_by_others(graph, cut=cut, shard=shard), receive=tuple(receive.tolist()))
        if len(cut.sizes) > 1
        else None,
    )


def join_edges(parts: Sequence[RowEdges], *, num_shards: int) -> RowEdges:
    """The edges of several graphs as those of one micro-batch: own rows graph after graph, halo rows shard after shard.

    All parts are of one shard of ``num_shards``; without any there are no edges.
    """
    if not parts:
        nothing = torch.empty(0, dtype=torch.int64)
        halo = Halo(send=(nothing,) * num_shards, receive=(0,) * num_shards) if num_shards > 1 else None
        return RowEdges(indptr=torch.zeros(1, dtype=torch.int64), sources=nothing, halo=halo)
    if len(parts) == 1:
        return parts[0]
    rows = np.cumsum([0, *(part.num_rows for part in parts)])
    ends = np.cumsum([0, *(len(part.sources) for part in parts)])
    indptr = [parts[0].indptr[:1], *(part.indptr[1:] + int(end) for part, end in zip(parts, ends, strict=False))]
    halos = [part.halo for part in parts if part.halo is not None]
    joined = Halo(
        send=tuple(
            torch.cat([sent + int(row) for sent, row in zip(of_shard, rows, strict=False)])
            for of_shard in zip(*(halo.send for halo in halos), strict=True)
        ),
        receive=tuple(map(sum, zip(*(halo.receive for halo in halos), strict=True))),
    )
    types = [part.types for part in parts if part.types is not None]
    return RowEdges(
        indptr=torch.cat(indptr),
        sources=torch.cat(_sources(parts, halos, rows)),
        types=torch.cat(types) if types else None,
        halo=joined if halos else None,
    )


def _sources(parts: Sequence[RowEdges], halos: Sequence[Halo], rows: np.ndarray) -> list[Tensor]:
    """Every part's sources in joint numbers: its own rows move on by the rows before, its halo rows by a table."""
    if not halos:
        return [part.sources + int(row) for part, row in zip(parts, rows, strict=False)]
    counts = np.asarray([halo.receive for halo in halos])  # [graphs, shards]
    # halo rows lie shard after shard, and graph after graph within a shard
    firsts = rows[-1] + np.cumsum([0, *counts.T.flatten()])[:-1].reshape(counts.T.shape).T
    sources = []
    for graph, part in enumerate(parts):
        own = np.arange(rows[graph], rows[graph + 1])
        runs = [np.arange(first, first + count) for first, count in zip(firsts[graph], counts[graph], strict=True)]
        table = torch.from_numpy(np.concatenate([own, *runs])).to(part.sources.device)
        sources.append(table[part.sources])
    return sources


def _needed_by_others(graph: Graph, *, cut: NodeCut, shard: int) -> tuple[Tensor, ...]:
    """For every shard, the own rows that edges into its rows start from, ascending."""
    starts = cut.starts
    places = cut.place[graph.indices]
    mine = np.flatnonzero((places >= starts[shard]) & (places < starts[shard + 1]))
    targets = np.searchsorted(graph.indptr, mine, side="right") - 1
    readers = np.searchsorted(starts, cut.place[targets], side="right") - 1
    own_rows = cut.sizes[shard]
    pairs = np.unique(readers * max(1, own_rows) + places[mine] - starts[shard])
    of_reader, rows = np.divmod(pairs, max(1, own_rows))
    borders = np.searchsorted(of_reader, np.arange(len(cut.sizes) + 1))
    return tuple(
        torch.from_numpy(rows[first:last] if reader != shard else rows[:0])
        for reader, (first, last) in enumerate(pairwise(borders))
    )
