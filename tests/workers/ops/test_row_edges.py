"""Edges by their targets and by their sources are the same edges."""

import torch

from tests.workers.ops.edge_lists import random_edges
from workers.ops.row_edges import RowEdges


def test_edges_by_source_are_the_edges_in_another_order() -> None:
    edges = random_edges(num_rows=5, num_halo=3, num_edges=40)
    back = edges.by_source
    counts = back.indptr.diff()
    assert len(counts) == edges.num_sources == 8
    sources = torch.repeat_interleave(torch.arange(8), counts)
    assert torch.equal(sources, edges.sources[back.order])
    assert torch.equal(back.targets, edges.targets[back.order])
    assert sorted(back.order.tolist()) == list(range(40))


def test_a_graph_without_edges_has_empty_lists() -> None:
    edges = RowEdges(indptr=torch.zeros(4, dtype=torch.int64), sources=torch.empty(0, dtype=torch.int64))
    assert edges.targets.tolist() == edges.by_source.order.tolist() == []
    assert edges.by_source.indptr.tolist() == [0, 0, 0, 0]


def test_moving_to_a_device_keeps_everything() -> None:
    edges = random_edges(num_rows=4, num_halo=2, num_edges=9)
    moved = edges.to(torch.device("cpu"))
    assert torch.equal(moved.indptr, edges.indptr)
    assert torch.equal(moved.sources, edges.sources)
    assert moved.halo.receive == edges.halo.receive
