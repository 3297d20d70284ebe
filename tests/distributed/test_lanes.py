"""Ranks whose backend knows no tags compute the same: messages of a pair of ranks are told apart by their order alone.

NCCL is such a backend and needs GPUs; here gloo is deprived of its tags, everywhere, and of the lookahead.
"""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.distributed.equality import Case, Outcome, Width, run_parallel
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool
from workers.comm import lanes
from workers.comm.wire import Transfer, Wire

LAYOUTS = {
    "two stages a rank": {"stages": tuple(Width(units) for units in (3, 1, 1, 1)), "stages_per_group": 2},
    "the same ranks cut otherwise": {"stages": (Width(4, cp=2), Width(2, dp=2)), "stages_per_group": 2},
    "zero bubble": {"stages": (Width(4), Width(2)), "schedule": "zero_bubble"},
    "a ring": {"cp": 2},
}


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(2) as pool:
        yield pool


def run_without_tags(rank: int, world_size: int, case: Case) -> Outcome:
    start = Wire.start

    def start_without_tag(self: Wire, *, sends: Any, receives: Any, tag: int = 0) -> Transfer:
        return start(self, sends=sends, receives=receives)

    with patch.object(Wire, "start", start_without_tag), patch.object(lanes, "are_needed", lambda axis: True):
        return run_parallel(rank, world_size, case)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_messages_that_order_alone_tells_apart_give_the_same_bits(pool: GlooPool, layout: dict[str, Any]) -> None:
    case = Case(odd_set(), num_micro_batches=3, steps=2, **layout)
    plain = pool.run(run_parallel, case, world_size=case.world_size)
    ordered = pool.run(run_without_tags, case, world_size=case.world_size)
    for ours, expected in zip(ordered, plain, strict=True):
        assert ours.losses == expected.losses
        assert ours.parameters.keys() == expected.parameters.keys()
        for name, parameter in expected.parameters.items():
            assert torch.equal(ours.parameters[name], parameter), name
