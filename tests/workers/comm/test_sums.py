"""A sum over ranks inside a model: the same bits everywhere, and its gradient is the sum of all ranks' gradients."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.sums import AxisSums


def sum_squares(rank: int, world_size: int) -> tuple[float, float, int]:
    """Loss of rank r: (r + 1) S^2 with S the sum over ranks of x = r + 1."""
    sums = AxisSums(Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD))
    x = torch.tensor([rank + 1.0], dtype=torch.float64, requires_grad=True)
    total = sums.sum(x)
    ((rank + 1) * total.square()).sum().backward()
    return float(total.detach()), float(x.grad), sums.bytes_summed


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_gradient_of_a_sum_is_the_sum_of_all_gradients(pool: GlooPool, world_size: int) -> None:
    whole = sum(range(1, world_size + 1))
    assert pool.run(sum_squares, world_size=world_size) == [(whole, 2.0 * whole * whole, 16)] * world_size


def test_one_rank_keeps_its_own() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    total = AxisSums(Axis()).sum(x)
    total.backward()
    assert (float(total.detach()), float(x.grad)) == (3.0, 1.0)
