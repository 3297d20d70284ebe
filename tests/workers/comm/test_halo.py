"""The halo: rows come from their owners, gradients go back to them, and the work in between hides both ways."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.halo import HaloExchange
from workers.comm.wire import Transfer, Wire
from workers.ops.exchanges import LocalNeighbours
from workers.ops.row_edges import Halo

SIZES = (3, 0, 2, 4)  # own rows of each rank; the second has none
# NEEDS[reader][owner]: which rows of the owner the reader's edges start from. Rank 3 needs nothing, rank 1 neither.
NEEDS = {0: {2: [1], 3: [0, 3]}, 2: {0: [0, 2], 3: [3]}}


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


def halo_of(rank: int) -> Halo:
    send = [NEEDS.get(reader, {}).get(rank, []) for reader in range(4)]
    return Halo(
        send=tuple(torch.tensor(rows, dtype=torch.int64) for rows in send),
        receive=tuple(len(NEEDS.get(rank, {}).get(owner, [])) for owner in range(4)),
    )


def exchange_rows(rank: int, world_size: int) -> tuple[list[float], list[float], int, int]:
    """What comes here, what gradient goes home, and the bytes sent forward and in all."""
    neighbours = HaloExchange(Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD))
    x = torch.arange(SIZES[rank], dtype=torch.float64).add(10 * rank).unsqueeze(1).repeat(1, 2).requires_grad_()
    pending = neighbours.begin(x, halo=halo_of(rank))
    between = (x * 2).sum()
    extended = pending.rows()
    forward = neighbours.wire.bytes_sent
    ((rank + 1) * extended.sum() + between).backward()
    return extended[SIZES[rank] :, 0].tolist(), x.grad[:, 0].tolist(), forward, neighbours.wire.bytes_sent


def test_rows_come_from_their_owners_and_gradients_return_to_them(pool: GlooPool) -> None:
    results = pool.run(exchange_rows)
    arrived = [sorted(NEEDS.get(reader, {}).items()) for reader in range(4)]
    for reader, (rows, gradients, _, _) in enumerate(results):
        assert rows == [10.0 * owner + row for owner, needed in arrived[reader] for row in needed]
        expected = [float(reader + 1 + 2)] * SIZES[reader]
        for other, needs in NEEDS.items():
            for row in needs.get(reader, []):
                expected[row] += other + 1
        assert gradients == expected


def test_every_rank_sends_what_others_need_and_as_many_gradients_as_it_received(pool: GlooPool) -> None:
    for rank, (rows, _, forward, total) in enumerate(pool.run(exchange_rows)):
        needed = sum(len(rows_of.get(rank, [])) for rows_of in NEEDS.values())
        assert forward == needed * 2 * 8
        assert total - forward == len(rows) * 2 * 8


def test_what_is_computed_in_between_runs_while_rows_or_gradients_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, whose halo is empty, so that the order of starts, work and waits can be seen."""
    events: list[str] = []
    neighbours = HaloExchange(Axis())
    start, wait = Wire.start, Transfer.wait
    monkeypatch.setattr(Wire, "start", lambda *args, **kwargs: events.append("start") or start(*args, **kwargs))
    monkeypatch.setattr(Transfer, "wait", lambda transfer: events.append("wait") or wait(transfer))
    x = torch.ones(3, 2, requires_grad=True)
    pending = neighbours.begin(x * 2, halo=Halo(send=(torch.empty(0, dtype=torch.int64),), receive=(0,)))
    events.append("forward")
    between = x * 3
    between.register_hook(lambda _: events.append("backward"))
    (pending.rows() * between).sum().backward()
    assert events == ["start", "forward", "wait", "start", "backward", "wait"]
    assert x.grad.tolist() == [[12.0, 12.0]] * 3


def test_rows_that_have_been_used_are_freed_at_once() -> None:
    gc.disable()
    try:
        pending = HaloExchange(Axis()).begin(torch.ones(3, requires_grad=True) * 2, halo=None)
        pending.rows().sum().backward()
        alive = weakref.ref(pending)
        del pending
        assert alive() is None
    finally:
        gc.enable()


def exchange_nothing(rank: int, world_size: int) -> tuple[list[float], int]:
    neighbours = HaloExchange(Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD))
    x = torch.ones(2, requires_grad=True)
    neighbours.extend(x, halo=None).sum().backward()
    return x.grad.tolist(), neighbours.wire.bytes_sent


def test_without_a_halo_nothing_is_sent(pool: GlooPool) -> None:
    assert pool.run(exchange_nothing, world_size=2) == [([1.0, 1.0], 0)] * 2


def test_one_process_has_all_rows_and_refuses_a_halo() -> None:
    x = torch.ones(2)
    assert LocalNeighbours().begin(x, halo=None).rows() is x
    with pytest.raises(AssertionError, match="exchange between processes"):
        LocalNeighbours().extend(x, halo=halo_of(0))
