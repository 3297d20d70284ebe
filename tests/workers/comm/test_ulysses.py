"""Heads shared out: each rank gets its heads of the rows of all, graph by graph, and gives the results back."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from planner.cost.communication import ulysses_elements
from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.ulysses import HeadShards
from workers.ops.row_layout import RowLayout, even_cut

UNEVEN = ((2, 1), (0, 3), (0, 0), (1, 2))  # sizes[shard][graph]; the third shard is empty
NUM_HEADS = 12


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


def shared(rank: int, world_size: int) -> HeadShards:
    return HeadShards(Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD))


def numbered(layout: RowLayout) -> Tensor:
    """Own rows [n, 1, H, 1]: 10,000 graph + 100 node + head."""
    rows = [
        10_000 * graph + 100 * node
        for graph in range(layout.num_graphs)
        for node in range(*layout.columns(layout.shard, graph).indices(100))
    ]
    return (torch.tensor(rows, dtype=torch.float64).view(-1, 1) + torch.arange(NUM_HEADS)).view(-1, 1, NUM_HEADS, 1)


def change_and_return(rank: int, world_size: int) -> tuple[list[list[float]], bool, bool]:
    """Attending rows by own heads; whether rows come back as they were; whether gradients of both ways do."""
    heads, layout = shared(rank, world_size), RowLayout(sizes=UNEVEN[:world_size], shard=rank)
    x = numbered(layout).requires_grad_()
    attending = heads.to_heads(x, layout=layout)
    back = heads.to_rows(attending, layout=layout)
    weights = numbered(layout) + 1
    (back * weights).sum().backward()
    return attending.detach()[:, 0, :, 0].tolist(), torch.equal(back, x), torch.equal(x.grad, weights)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_attends_with_its_heads_for_all_rows_graph_by_graph(pool: GlooPool, world_size: int) -> None:
    totals = [sum(sizes[graph] for sizes in UNEVEN[:world_size]) for graph in range(2)]
    width = NUM_HEADS // world_size
    for rank, (attending, same, same_gradients) in enumerate(pool.run(change_and_return, world_size=world_size)):
        own = range(rank * width, (rank + 1) * width)
        assert attending == [
            [10_000.0 * graph + 100 * node + head for head in own]
            for graph in range(2)
            for node in range(totals[graph])
        ]
        assert same
        assert same_gradients


def count_sent(rank: int, world_size: int, num_nodes: int, head_size: int) -> int:
    """Elements that this rank sends for one attention: queries, keys and values there, the output back."""
    heads = shared(rank, world_size)
    layout = RowLayout(sizes=tuple((size,) for size in even_cut(num_nodes, world_size)), shard=rank)
    qkv = torch.zeros(layout.num_rows(rank), 3, NUM_HEADS, head_size)
    heads.to_rows(heads.to_heads(qkv, layout=layout)[:, :1], layout=layout)
    return heads.wire.bytes_sent // qkv.element_size()


@pytest.mark.parametrize("world_size", [2, 4])
def test_traffic_is_what_the_planner_charges(pool: GlooPool, world_size: int) -> None:
    promised = ulysses_elements(num_nodes=24, hidden_size=NUM_HEADS * 5, cp_degree=world_size)
    assert pool.run(count_sent, 24, 5, world_size=world_size) == [promised] * world_size
