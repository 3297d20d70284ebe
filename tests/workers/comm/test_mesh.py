"""The mesh of a stage: who shares rows, who are replicas; and no process group where one rank is alone."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from planner.plan import Stage
from tests.kit.gloo_pool import GlooPool
from workers.comm.axis import Axis
from workers.comm.mesh import Mesh, build_mesh


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


def stage(*, dp: int, cp: int, ulysses: int = 1) -> Stage:
    exchange = "ring" if ulysses == 1 else "ulysses" if ulysses == cp else "ulysses_ring"
    return Stage(
        units=("head",),
        ranks=tuple(range(dp * cp)),
        dp_degree=dp,
        cp_degree=cp,
        exchange=exchange,
        ulysses_degree=ulysses,
    )


def lines(rank: int, world_size: int, dp: int, cp: int, ulysses: int) -> dict[str, tuple[tuple[int, ...], int]]:
    mesh = build_mesh(stage(dp=dp, cp=cp, ulysses=ulysses), rank=rank)
    return {name: (axis.ranks, axis.index) for name, axis in vars(mesh).items()}


def sums(rank: int, world_size: int, dp: int, cp: int) -> dict[str, int]:
    mesh = build_mesh(stage(dp=dp, cp=cp), rank=rank)
    totals = {}
    for name, axis in {"world": mesh.world, "dp": mesh.dp, "cp": mesh.cp}.items():
        value = torch.tensor(10**rank)
        if axis.group is not None:
            dist.all_reduce(value, group=axis.group)
        axis.barrier()
        totals[name] = int(value)
    return totals


def test_cp_is_the_fast_axis_and_the_ring_goes_round_it(pool: GlooPool) -> None:
    assert pool.run(lines, 2, 2, 1)[2] == {
        "world": ((0, 1, 2, 3), 2),
        "dp": ((0, 2), 1),
        "cp": ((2, 3), 0),
        "ulysses": ((2,), 0),
        "ring": ((2, 3), 0),
    }


def test_neighbours_share_heads_and_the_ring_takes_one_of_every_run(pool: GlooPool) -> None:
    found = pool.run(lines, 1, 4, 2)
    assert [rank["ulysses"] for rank in found] == [((0, 1), 0), ((0, 1), 1), ((2, 3), 0), ((2, 3), 1)]
    assert [rank["ring"] for rank in found] == [((0, 2), 0), ((1, 3), 0), ((0, 2), 1), ((1, 3), 1)]


def test_ranks_that_share_all_heads_have_no_ring(pool: GlooPool) -> None:
    assert [rank["ring"] for rank in pool.run(lines, 1, 3, 3, world_size=3)] == [((rank,), 0) for rank in range(3)]


@pytest.mark.parametrize(
    ("dp", "cp", "expected"),
    [
        (2, 2, [{"world": 1111, "dp": dp, "cp": cp} for dp, cp in ((101, 11), (1010, 11), (101, 1100), (1010, 1100))]),
        (1, 3, [{"world": 111, "dp": 10**rank, "cp": 111} for rank in range(3)]),
        (3, 1, [{"world": 111, "dp": 111, "cp": 10**rank} for rank in range(3)]),
    ],
)
def test_groups_join_the_ranks_of_each_line(pool: GlooPool, dp: int, cp: int, expected: list[dict[str, int]]) -> None:
    assert pool.run(sums, dp, cp, world_size=dp * cp) == expected


def test_one_rank_needs_no_process_group() -> None:
    mesh = build_mesh(stage(dp=1, cp=1), rank=0)
    alone = Axis(ranks=(0,), index=0)
    assert mesh == Mesh(world=alone, dp=alone, cp=alone, ulysses=alone, ring=alone)
    mesh.world.barrier()


def groups_after_closing(rank: int, world_size: int) -> int:
    mesh = build_mesh(stage(dp=2, cp=2), rank=rank)
    made = len(dist.distributed_c10d._world.pg_map)
    mesh.close()
    return made - len(dist.distributed_c10d._world.pg_map)


def test_closing_a_mesh_frees_its_three_groups(pool: GlooPool) -> None:
    assert pool.run(groups_after_closing) == [3] * 4
