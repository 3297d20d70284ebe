"""Whatever the graphs, the model and the ranks: what is computed is what the plain module computes."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.distributed.equality import Case, Judge
from tests.distributed.equality.drawn import KINDS, LARGEST, drawn_cases, odd_graph
from tests.distributed.equality.layouts import Cell
from tests.distributed.equality.models import typed
from tests.distributed.odd_graphs import build_set
from tests.kit.gloo_pool import GlooPool

NUM_DRAWN = 12  # each takes seconds where ranks outnumber cores


@settings(
    max_examples=NUM_DRAWN,
    deadline=None,  # the machine may be shared
    derandomize=True,  # a broken build is not a matter of luck
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=drawn_cases())
def test_random_graphs_in_a_random_layout(pool: GlooPool, case: Case) -> None:
    Judge(pool).check_gradients(case)


@pytest.mark.parametrize("model", ["graphormer", "custom", "exphormer", "sgformer"])
def test_graphs_of_one_to_hundreds_of_nodes_in_one_batch(pool: GlooPool, model: str) -> None:
    sizes = (1, LARGEST, 2, 57, 3, 1, 128)
    graphs = [odd_graph(kind, size, 5, 1) for kind, size in zip(KINDS, sizes, strict=True)]
    exchange = "halo" if model in ("exphormer", "sgformer") else "ring"
    cell = Cell(model, "two replicas, then two shards", exchange, 1, "whole", "many")
    Judge(pool).check(cell.case(dataset=typed(build_set(graphs)), steps=2))
