"""The ring: every shard comes by once, sums come home, and no byte more than promised is sent."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from planner.cost.communication import ring_backward_elements, ring_forward_elements
from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.ring import RingExchange
from workers.ops.row_layout import RowLayout, even_cut

UNEVEN = ((2, 1), (0, 3), (1, 0), (0, 0))  # sizes[shard][graph]; the last shard is empty


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


def ring(rank: int, world_size: int) -> RingExchange:
    return RingExchange(Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD))


def own_block(layout: RowLayout) -> Tensor:
    """Rows that say whose they are."""
    rows = layout.num_rows(layout.shard)
    return torch.arange(rows, dtype=torch.float64).add(100 * layout.shard).unsqueeze(1).repeat(1, 2)


def visit_all(rank: int, world_size: int, sizes: tuple[tuple[int, ...], ...]) -> list[tuple[int, list[float]]]:
    layout = RowLayout(sizes=sizes[:world_size], shard=rank)
    seen: list[tuple[int, list[float]]] = []
    ring(rank, world_size).visit(
        own_block(layout), layout=layout, visitor=lambda shard, block: seen.append((shard, block[:, 0].tolist()))
    )
    return seen


def sum_all(rank: int, world_size: int, sizes: tuple[tuple[int, ...], ...]) -> list[float]:
    layout = RowLayout(sizes=sizes[:world_size], shard=rank)
    total = ring(rank, world_size).visit_and_sum(
        own_block(layout), layout=layout, visitor=lambda shard, block: block * 10**rank
    )
    return total[:, 0].tolist()


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_rank_sees_every_shard_once_starting_with_its_own(pool: GlooPool, world_size: int) -> None:
    content = [own_block(RowLayout(sizes=UNEVEN, shard=shard))[:, 0].tolist() for shard in range(4)]
    for rank, seen in enumerate(pool.run(visit_all, UNEVEN, world_size=world_size)):
        order = [(rank - step) % world_size for step in range(world_size)]
        assert seen == [(shard, content[shard]) for shard in order]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_all_ranks_add_to_a_shard_comes_home(pool: GlooPool, world_size: int) -> None:
    factor = sum(10**rank for rank in range(world_size))
    for rank, total in enumerate(pool.run(sum_all, UNEVEN, world_size=world_size)):
        assert total == (own_block(RowLayout(sizes=UNEVEN, shard=rank))[:, 0] * factor).tolist()


def test_a_ring_of_one_rank_sends_nothing_and_needs_no_group() -> None:
    layout = RowLayout(sizes=((3,),))
    alone = RingExchange(Axis(ranks=(0,), index=0))
    seen: list[int] = []
    alone.visit(own_block(layout), layout=layout, visitor=lambda shard, block: seen.append(shard))
    total = alone.visit_and_sum(own_block(layout), layout=layout, visitor=lambda shard, block: block * 2)
    assert seen == [0]
    assert torch.equal(total, own_block(layout) * 2)


def count_sent(rank: int, world_size: int, num_nodes: int, hidden_size: int) -> tuple[int, int]:
    """Elements that this rank sends in one visit, and in one visit with sums."""
    sent = 0
    real = dist.batch_isend_irecv

    def counting(operations: list[dist.P2POp]) -> list[dist.Work]:
        nonlocal sent
        sent += sum(operation.tensor.numel() for operation in operations if operation.op is dist.isend)
        return real(operations)

    dist.batch_isend_irecv = counting
    try:
        layout = RowLayout(sizes=tuple((size,) for size in even_cut(num_nodes, world_size)), shard=rank)
        block = torch.zeros(layout.num_rows(rank), 2, hidden_size)
        ring(rank, world_size).visit(block, layout=layout, visitor=lambda shard, block: None)
        forward = sent
        ring(rank, world_size).visit_and_sum(block, layout=layout, visitor=lambda shard, block: block.clone())
    finally:
        dist.batch_isend_irecv = real
    return forward, sent - forward


@pytest.mark.parametrize("world_size", [2, 4])
def test_traffic_is_what_the_planner_charges(pool: GlooPool, world_size: int) -> None:
    sizes = {"num_nodes": 24, "hidden_size": 5}
    promised = tuple(
        elements(**sizes, cp_degree=world_size) for elements in (ring_forward_elements, ring_backward_elements)
    )
    assert pool.run(count_sent, 24, 5, world_size=world_size) == [promised] * world_size
