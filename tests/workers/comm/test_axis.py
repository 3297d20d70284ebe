"""What the ranks of a line do together, and that they do not wait for ever."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.kit.gloo_pool import GlooPool
from workers.comm import axis
from workers.comm.axis import Axis, open_axis

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def line(rank: int, world_size: int) -> Axis:
    return open_axis((tuple(range(world_size)),), rank=rank)


def talk(rank: int, world_size: int) -> tuple[float, float, float, int]:
    together = line(rank, world_size)
    one, other, sent = torch.tensor([rank + 1.0]), torch.tensor([10.0 * rank]), torch.tensor([float(rank)])
    together.sum_in_place(one, other)
    together.broadcast_in_place(sent, source=world_size - 1)
    together.barrier()
    return float(one), float(other), float(sent), together.first_says(rank + 7, device=CPU)


def test_sums_broadcasts_and_the_word_of_the_first_reach_every_rank(pool: GlooPool) -> None:
    assert pool.run(talk) == [(6.0, 30.0, 2.0, 7)] * 3


def test_a_rank_alone_keeps_what_it_has() -> None:
    alone, tensor = line(0, 1), torch.tensor([4.0])
    alone.sum_in_place(tensor)
    alone.broadcast_in_place(tensor, source=0)
    alone.barrier()
    assert float(tensor) == 4.0
    assert alone.first_says(5, device=CPU) == 5
    assert alone.group is None
    alone.close()


def meet_late(rank: int, world_size: int) -> str:
    """Rank 1 stays away; rank 0 says how its waiting ended."""
    axis.COLLECTIVE_TIMEOUT_S = 0.2
    try:
        together = line(rank, world_size)
        if rank == 0:
            together.sum_in_place(torch.ones(1))
    except RuntimeError as error:
        return str(error)
    finally:
        axis.COLLECTIVE_TIMEOUT_S = 600
        dist.barrier()
    return ""


def test_a_collective_that_a_rank_does_not_join_ends_at_our_timeout_and_not_at_torchs(pool: GlooPool) -> None:
    waited, _ = pool.run(meet_late, world_size=2, timeout_s=30)
    assert "timed out" in waited.lower()
