"""Every transformer, over any ranks, by any exchange that fits it, computes what the plain module computes alone.

Here a selection of the tables' cells that holds every pair of their properties; ``tests.benchmarks.equality`` has all.
"""

import pytest

from tests.distributed.equality import Judge
from tests.distributed.equality.layouts import Cell, all_cells, cells, covering

IN_FLOAT32 = [
    cell
    for cell in cells(["pp 1 dp 1 cp 4", "pp 1 dp 2 cp 2", "two shards, then one rank"])
    if (cell.sharding == "sharded") == (cell.layout == "pp 1 dp 2 cp 2") and cell.graphs == "many"
]


@pytest.mark.parametrize("cell", covering(all_cells()), ids=lambda cell: cell.name)
def test_a_spread_model_equals_the_plain_module(judge: Judge, cell: Cell) -> None:
    judge.check(cell.case())


@pytest.mark.parametrize("cell", covering(IN_FLOAT32), ids=lambda cell: cell.name)
def test_in_float32_it_is_as_near_to_float64_as_the_plain_module(judge: Judge, cell: Cell) -> None:
    judge.check_float32(cell.case())
