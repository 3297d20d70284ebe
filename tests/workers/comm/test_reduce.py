"""Sums over ranks: complete, identical everywhere, and silent where a rank is alone."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.kit.gloo_pool import GlooPool
from workers.comm import reduce
from workers.comm.axis import Axis
from workers.comm.reduce import copy_from_first, sum_gradients


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def axis(rank: int, world_size: int) -> Axis:
    return Axis(ranks=tuple(range(world_size)), index=rank, group=dist.group.WORLD)


def parameters(rank: int) -> list[nn.Parameter]:
    """Uneven shapes of two dtypes; rank 1 has no gradient for the second."""
    generator = torch.Generator().manual_seed(rank)
    made = [
        nn.Parameter(torch.zeros(shape, dtype=dtype))
        for shape, dtype in (((3, 2), torch.float32), ((), torch.float32), ((5,), torch.float64), ((7,), torch.float32))
    ]
    for index, parameter in enumerate(made):
        if (rank, index) != (1, 1):
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return made


def summed(rank: int, world_size: int, bucket_bytes: int) -> list[Tensor]:
    reduce.BUCKET_BYTES = bucket_bytes
    made = parameters(rank)
    sum_gradients(made, axis=axis(rank, world_size))
    return [parameter.grad for parameter in made]


@pytest.mark.parametrize("bucket_bytes", [1, 24, 1 << 20])
def test_gradients_are_summed_whatever_the_size_of_the_buckets(pool: GlooPool, bucket_bytes: int) -> None:
    results = pool.run(summed, bucket_bytes)
    for index in range(4):
        parts = [parameters(rank)[index].grad for rank in range(3)]
        expected = sum(part for part in parts if part is not None)
        torch.testing.assert_close(results[0][index], expected)
        assert torch.equal(results[1][index], results[0][index])
        assert torch.equal(results[2][index], results[0][index])


def test_a_rank_alone_keeps_what_it_has() -> None:
    made = parameters(0)
    before = [parameter.grad.clone() for parameter in made]
    sum_gradients(made, axis=Axis(ranks=(0,), index=0))
    assert all(torch.equal(parameter.grad, grad) for parameter, grad in zip(made, before, strict=True))


def copied(rank: int, world_size: int) -> list[Tensor]:
    """Values that differ by rank: a matrix, one that is not contiguous, a count, a flag."""
    made = [torch.full((2, 3), float(rank)), torch.arange(6.0).view(2, 3).T + rank, torch.tensor(7 + rank)]
    made.append(torch.tensor([rank == 0, rank == 1]))
    copy_from_first(made, axis=axis(rank, world_size))
    return made


def test_all_ranks_get_the_values_of_the_first(pool: GlooPool) -> None:
    first, *others = pool.run(copied)
    assert torch.equal(first[1], torch.arange(6.0).view(2, 3).T)
    assert first[3].tolist() == [True, False]
    for other in others:
        assert all(torch.equal(value, wanted) for value, wanted in zip(other, first, strict=True))
