"""Stages: what a rank keeps, and what happens when one dies. That they compute the same is said in ``equality``."""

import os

import pytest
import torch

from tests.distributed.equality import Case, Width, build, plan_of, run_parallel, spread
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from tests.kit.objectives import CROSS_ENTROPY
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import run_step


def test_a_rank_keeps_the_parameters_of_its_stages_alone(pool: GlooPool) -> None:
    case = Case(odd_set(), stages=(Width(4), Width(2)), num_micro_batches=2)
    first, last = pool.run(run_parallel, case, world_size=2)
    assert first.parameters.keys() & last.parameters.keys() == {"distance.table"}  # both have a block that looks it up
    assert {name.split(".")[0] for name in first.parameters} == {"features", "degree", "distance", "blocks"}
    assert {name.split(".")[0] for name in last.parameters} == {"distance", "blocks", "head"}


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
    pool.run(run_parallel, case, world_size=3)  # now all ranks have imported what they need
    with pytest.raises(RanksFailedError, match="rank 1: the process died with exit code 3") as caught:
        pool.run(die_in_the_middle, case, world_size=3)
    assert not any(isinstance(error, TimeoutError) for error in caught.value.errors.values())  # none had to be killed
