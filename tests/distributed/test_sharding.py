"""Sharded units, in one level or two, beside whole ones, in any layout: the numbers of one dense process."""

from typing import Any

import pytest

from tests.distributed.claims import check_float64
from tests.distributed.equality import SPEC, Case, Width
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool

LAYOUTS: dict[str, dict[str, Any]] = {
    "two replicas": {"dp": 2, "sharded": SPEC.units},
    "two shards, recomputed": {"cp": 2, "sharded": SPEC.units, "recompute": SPEC.units},
    "tables sharded, blocks whole": {"cp": 2, "dp": 2, "sharded": ("features", "degree", "head")},
    "two levels over rows and graphs": {"cp": 2, "dp": 2, "sharded": SPEC.units, "shard_degree": 2, "clip_norm": 0.05},
    "two stages": {"stages": (Width(3, dp=2), Width(3, cp=2)), "sharded": SPEC.units},
    "the wider stage alone": {"stages": (Width(4), Width(2, dp=3)), "sharded": ("head",), "clip_norm": 0.05},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_sharded_units_equal_one_dense_process(layout: dict[str, Any]) -> None:
    """Fresh processes: torch remembers a mesh by its ranks, and the groups of an earlier run in the pool are gone."""
    case = Case(odd_set(), num_micro_batches=2, steps=3, **layout)
    with GlooPool(case.world_size) as pool:
        check_float64(pool, case)
