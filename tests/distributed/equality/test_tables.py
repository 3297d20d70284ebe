"""Every transformer, over any ranks, by any exchange that fits it, computes what the plain module computes alone.

Here a selection of the tables' cells: of up to four ranks all that can meet does, of six and eight every property
comes. ``tests.benchmarks.equality`` has all.
"""

import pytest

from tests.distributed.equality import Judge
from tests.distributed.equality.layouts import (
    SIX_AND_EIGHT,
    UNEVEN,
    UP_TO_FOUR,
    Cell,
    cells,
    covering,
    meetings,
    singles,
)

IN_FLOAT64 = [*covering(cells([*UP_TO_FOUR, *UNEVEN]), of=meetings), *covering(cells(SIX_AND_EIGHT), of=singles)]
IN_FLOAT32 = [
    cell
    for cell in cells(["pp 1 dp 1 cp 4", "pp 1 dp 2 cp 2", "two shards, then one rank"])
    if (cell.sharding == "sharded") == (cell.layout == "pp 1 dp 2 cp 2") and cell.graphs == "many"
]


@pytest.mark.parametrize("cell", IN_FLOAT64, ids=lambda cell: cell.name)
def test_a_spread_model_equals_the_plain_module(judge: Judge, cell: Cell) -> None:
    judge.check(cell.case())


@pytest.mark.parametrize("cell", covering(IN_FLOAT32, of=singles), ids=lambda cell: cell.name)
def test_in_float32_it_is_as_near_to_float64_as_the_plain_module(judge: Judge, cell: Cell) -> None:
    judge.check_float32(cell.case())
