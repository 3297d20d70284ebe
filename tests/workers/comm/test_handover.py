"""Every row reaches the rank that owns it in the next stage, once, and its gradient comes back the same way."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import open_axis
from workers.comm.handover import Holding, Links, find_route
from workers.ops.row_layout import RowLayout, even_cut

SIZES = (5, 1, 0, 8, 3)  # rows of graphs 0 to 4


def holdings(*replicas: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[int, ...] = SIZES) -> list[Holding]:
    """A stage from (ranks, graphs) of its replicas."""
    found = []
    for ranks, graphs in replicas:
        cuts = [even_cut(sizes[graph], len(ranks)) for graph in graphs]
        layout = RowLayout(sizes=tuple(tuple(cut[shard] for cut in cuts) for shard in range(len(ranks))))
        found.append(Holding(ranks=ranks, graphs=graphs, layout=layout))
    return found


def rows_of(stage: list[Holding], rank: int) -> torch.Tensor:
    """(graph, node) of every row that ``rank`` holds, [n, 2]."""
    parts = [torch.empty(0, 2)]
    for holding in stage:
        if rank in holding.ranks:
            shard = holding.ranks.index(rank)
            for place, graph in enumerate(holding.graphs):
                nodes = torch.arange(*holding.layout.columns(shard, place).indices(10**6)[:2])
                parts.append(torch.stack([torch.full_like(nodes, graph), nodes], dim=1).float())
    return torch.cat(parts)


NARROW = holdings(((0,), (0, 1, 2, 3, 4)))
WIDE = holdings(((1, 2, 3), (4, 2, 0, 1, 3)))
REPLICAS = holdings(((0, 1), (1, 3)), ((2, 3), (0, 2, 4)))


@given(order=st.permutations(range(5)), cut=st.integers(0, 5), width=st.integers(1, 3))
def test_what_is_sent_is_what_is_received_and_covers_every_row_once(order: list[int], cut: int, width: int) -> None:
    targets = holdings((tuple(range(width)), tuple(order[:cut])), (tuple(range(width, 2 * width)), tuple(order[cut:])))
    routes = [find_route(REPLICAS, targets, rank=rank) for rank in range(2 * width + 4)]
    for rank, route in enumerate(routes):
        assert route.num_sent == len(rows_of(REPLICAS, rank))
        covered = sorted(
            row for pieces in route.receives.values() for piece in pieces for row in range(*piece.indices(99))
        )
        assert covered == list(range(route.num_received)) == list(range(len(rows_of(targets, rank))))
        for peer, pieces in route.receives.items():
            had = rows_of(REPLICAS, peer)
            sent = torch.cat([had[piece] for piece in routes[peer].sends[rank]])
            assert torch.equal(sent, torch.cat([rows_of(targets, rank)[piece] for piece in pieces]))


def test_equal_stages_move_all_rows_in_one_piece() -> None:
    moved = [Holding(ranks=tuple(rank + 4 for rank in h.ranks), graphs=h.graphs, layout=h.layout) for h in REPLICAS]
    assert find_route(REPLICAS, moved, rank=2).sends == {6: [slice(0, 5)]}


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


def go_there_and_back(
    rank: int, world_size: int, sources: list[Holding], targets: list[Holding]
) -> tuple[torch.Tensor, torch.Tensor]:
    axis = open_axis((tuple(range(world_size)),), rank=rank)
    links, route = Links(axis), find_route(sources, targets, rank=rank)
    here = rows_of(sources, rank)
    expected = links.expect(route=route, tag=4, like=torch.empty(0, 2))
    links.send(here, route=route, tag=4)
    there = links.receive(expected, tag=4)
    expected = links.expect(route=route.reversed(), tag=5, like=torch.empty(0, 2))
    links.send(2 * there, route=route.reversed(), tag=5)
    back = links.receive(expected, tag=5)
    links.confirm(tag=4)
    links.settle()
    axis.close()
    assert torch.equal(back, 2 * here)
    return there, back


@pytest.mark.parametrize(
    ("sources", "targets"), [(NARROW, WIDE), (WIDE, NARROW), (REPLICAS, WIDE), (NARROW, REPLICAS), (NARROW, NARROW)]
)
def test_rows_reach_their_owners_and_come_back(pool: GlooPool, sources: list[Holding], targets: list[Holding]) -> None:
    for rank, (there, _) in enumerate(pool.run(go_there_and_back, sources, targets)):
        assert torch.equal(there, rows_of(targets, rank))


def send_against_the_order(rank: int, world_size: int) -> list[float]:
    """Rank 0 sends message 7, then 6; rank 1 takes 6 first."""
    axis = open_axis((tuple(range(world_size)),), rank=rank)
    links = Links(axis)
    route = find_route(holdings(((0,), (0,))), holdings(((1,), (0,))), rank=rank)
    like, found = torch.empty(0, 1), []
    for tag in (7, 6) if rank == 0 else (6, 7):
        expected = links.expect(route=route, tag=tag, like=like)
        links.send(torch.full((route.num_sent, 1), float(tag)), route=route, tag=tag)
        found += links.receive(expected, tag=tag).flatten().tolist()
    links.settle()
    axis.close()
    return found


def test_messages_are_told_apart_in_any_order(pool: GlooPool) -> None:
    assert pool.run(send_against_the_order, world_size=2) == [[], [6.0] * 5 + [7.0] * 5]
