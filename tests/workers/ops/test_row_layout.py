"""Cutting the rows of ragged micro-batches: nothing lost, nothing twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.ops.row_layout import RowLayout, even_cut, whole


@given(num_rows=st.integers(0, 1000), num_shards=st.integers(1, 17))
def test_an_even_cut_covers_all_rows_with_sizes_that_differ_by_one_at_most(num_rows: int, num_shards: int) -> None:
    sizes = even_cut(num_rows, num_shards)
    assert len(sizes) == num_shards
    assert sum(sizes) == num_rows
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(graph_sizes=st.lists(st.integers(0, 9), max_size=5), num_shards=st.integers(1, 4))
def test_shards_of_a_graph_tile_its_nodes_and_rows_of_a_shard_tile_the_shard(
    graph_sizes: list[int], num_shards: int
) -> None:
    cuts = [even_cut(size, num_shards) for size in graph_sizes]
    layout = RowLayout(sizes=tuple(tuple(cut[shard] for cut in cuts) for shard in range(num_shards)))
    for graph, size in enumerate(graph_sizes):
        columns = [layout.columns(shard, graph) for shard in range(num_shards)]
        assert [column for part in columns for column in range(size)[part]] == list(range(size))
    for shard in range(num_shards):
        rows = [layout.rows(shard, graph) for graph in range(layout.num_graphs)]
        total = layout.num_rows(shard)
        assert [row for part in rows for row in range(total)[part]] == list(range(total))


def test_one_process_holds_every_graph_in_one_piece() -> None:
    layout = whole((3, 5))
    assert layout.num_shards == 1
    assert layout.num_rows(0) == 8
    assert layout.columns(0, 1) == slice(0, 5)
    assert layout.rows(0, 1) == slice(3, 8)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_batch_without_graphs_has_no_rows(num_shards: int) -> None:
    layout = RowLayout(sizes=((),) * num_shards)
    assert layout.num_graphs == 0
    assert layout.num_rows(num_shards - 1) == 0


def test_a_run_of_shards_is_one_shard_with_the_rows_of_all_graph_by_graph() -> None:
    layout = RowLayout(sizes=((2, 1), (0, 3), (1, 0), (4, 4)), shard=2)
    joined = layout.joined(2)
    assert joined == RowLayout(sizes=((2, 4), (5, 4)), shard=1)
    assert layout.joined(1) == layout
    with pytest.raises(AssertionError, match="4 shards make no runs of 3"):
        layout.joined(3)
