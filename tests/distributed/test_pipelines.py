"""Cut into stages in any way and played in any order, the transformer computes what one dense process computes."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.distributed.claims import check_float64
from tests.distributed.equality import CROSS_ENTROPY, SPEC, Case, Width, build, plan_of, run_parallel, spread
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import run_step

# of Graphormer's six units: features, degree, distance, block.0, block.1, head
FOUR_RANKS = {
    "two stages": (Width(4), Width(2)),
    "features alone": (Width(1), Width(5)),
    "four stages": (Width(2), Width(2), Width(1), Width(1)),
    "two stages of two shards": (Width(4, cp=2), Width(2, cp=2)),
    "two stages of two replicas": (Width(3, dp=2), Width(3, dp=2)),
    "one rank, then two shards": (Width(3), Width(3, cp=2)),
    "two shards, then one rank": (Width(4, cp=2), Width(2)),
    "one rank, then two replicas": (Width(3), Width(3, dp=2)),
    "two shards, then two replicas": (Width(4, cp=2), Width(2, dp=2)),
    "three shards, then one rank": (Width(5, cp=3), Width(1)),
    "one rank, then three replicas": (Width(2), Width(4, dp=3)),
}
MORE_RANKS = {
    "three replicas of two shards": (Width(6, dp=3, cp=2),),
    "one, two and three ranks": (Width(2), Width(2, dp=2), Width(2, cp=3)),
    "four shards, then four replicas": (Width(4, cp=4), Width(2, dp=4)),
    "four stages of two": (Width(2, cp=2), Width(2, dp=2), Width(1, cp=2), Width(1, dp=2)),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(8) as pool:
        yield pool


@pytest.mark.parametrize("stages", FOUR_RANKS.values(), ids=FOUR_RANKS.keys())
def test_stages_of_up_to_four_ranks_equal_one_dense_process(pool: GlooPool, stages: tuple[Width, ...]) -> None:
    check_float64(pool, Case(odd_set(), stages=stages, num_micro_batches=3, steps=3))


@pytest.mark.parametrize("stages", MORE_RANKS.values(), ids=MORE_RANKS.keys())
def test_stages_of_six_and_eight_ranks_equal_one_dense_process(pool: GlooPool, stages: tuple[Width, ...]) -> None:
    check_float64(pool, Case(odd_set(), stages=stages, num_micro_batches=4, steps=3))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_every_schedule_computes_the_same(pool: GlooPool, schedule: str) -> None:
    stages = (Width(3), Width(2, cp=2), Width(1))
    check_float64(pool, Case(odd_set(), stages=stages, schedule=schedule, num_micro_batches=5, steps=3))


@pytest.mark.parametrize("degrees", [{}, {"cp": 2}, {"dp": 2}], ids=str)
def test_ranks_that_serve_two_stages_each_compute_the_same(pool: GlooPool, degrees: dict[str, int]) -> None:
    stages = tuple(Width(units, **degrees) for units in (3, 1, 1, 1))
    check_float64(pool, Case(odd_set(), stages=stages, stages_per_group=2, num_micro_batches=3, steps=3))


def test_stages_that_share_all_ranks_hand_over_to_themselves(pool: GlooPool) -> None:
    stages = (Width(4, cp=2), Width(2, dp=2))
    check_float64(pool, Case(odd_set(), stages=stages, stages_per_group=2, num_micro_batches=2, steps=3))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_recomputation_and_dropout_in_stages_change_nothing(pool: GlooPool, schedule: str) -> None:
    spec = SPEC.model_copy(update={"dropout": 0.4, "input_dropout": 0.3})
    stages = (Width(4), Width(2, cp=2))
    case = Case(odd_set(), stages=stages, schedule=schedule, spec=spec, num_micro_batches=3, steps=3)
    check_float64(pool, case)
    recomputed = Case(
        odd_set(),
        stages=stages,
        schedule=schedule,
        spec=spec,
        num_micro_batches=3,
        steps=3,
        recompute=SPEC.units,
    )
    check_float64(pool, recomputed)


def test_one_graph_in_stages_of_uneven_shards_equals_one_dense_process(pool: GlooPool) -> None:
    check_float64(pool, Case(one_graph(num_nodes=37), stages=(Width(4, cp=3), Width(2)), steps=3))


def test_fewer_nodes_than_ranks_in_stages_change_nothing(pool: GlooPool) -> None:
    dataset = build_set([build_graph(2, [(0, 1)], seed=1)])
    check_float64(pool, Case(dataset, stages=(Width(4, cp=2), Width(2, dp=2)), num_micro_batches=2, steps=2))


def test_a_rank_keeps_the_parameters_of_its_stages_alone(pool: GlooPool) -> None:
    first, last = check_float64(pool, Case(odd_set(), stages=(Width(4), Width(2)), num_micro_batches=2))
    assert first.parameters.keys() & last.parameters.keys() == {"distance.table"}  # both have a block that looks it up
    assert {name.split(".")[0] for name in first.parameters} == {"features", "degree", "distance", "blocks"}
    assert {name.split(".")[0] for name in last.parameters} == {"distance", "blocks", "head"}


@pytest.mark.parametrize("layout", [{"cp": 2, "dp": 2}, {"stages": (Width(4), Width(2, dp=2))}], ids=str)
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(pool: GlooPool, layout: dict[str, Any]) -> None:
    case = Case(odd_set(), num_micro_batches=2, steps=3, clip_norm=0.05, **layout)
    clipped = check_float64(pool, case)
    plain = pool.run(run_parallel, replace(case, clip_norm=None), world_size=case.world_size)
    assert clipped[0].losses[-1] != plain[0].losses[-1]


def die_in_the_middle(rank: int, world_size: int, case: Case) -> None:
    """Rank 1 ends without a word while its neighbours wait for its rows."""
    plan = plan_of(case)
    parallel, dealer = spread(case, rank=rank, model=build(case), plan=plan)
    if rank == 1:
        parallel.executor.run_units = lambda *_: os._exit(3)  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(own_parameters(parallel.model).values(), lr=0.1)
    (share,) = dealer.epoch(1)
    run_step(parallel, optimizer=optimizer, loss=CROSS_ENTROPY, share=share, actions=plan.actions[rank], step=1, draw=1)


def test_a_rank_that_dies_ends_all_others_at_once_and_is_named(pool: GlooPool) -> None:
    case = Case(odd_set(), stages=(Width(2), Width(2), Width(2)), num_micro_batches=2)
    with pytest.raises(RanksFailedError, match="rank 1: the process died with exit code 3") as caught:
        pool.run(die_in_the_middle, case, world_size=3)
    assert not any(isinstance(error, TimeoutError) for error in caught.value.errors.values())  # none had to be killed
