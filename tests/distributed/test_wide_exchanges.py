"""Six and eight ranks: degrees that differ, so that a ring taken for a run of shared heads would show."""

from collections.abc import Iterator

import pytest

from planner.plan import Partition
from tests.distributed.claims import check_float64
from tests.distributed.edge_model import EdgeSpec
from tests.distributed.equality import SPEC, Case
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool

TWELVE_HEADS = SPEC.model_copy(update={"hidden_size": 24, "num_heads": 12})


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(8) as pool:
        yield pool


@pytest.mark.parametrize(("ulysses", "ring"), [(2, 3), (3, 2), (2, 4), (4, 2)])
def test_heads_shared_in_runs_and_a_ring_over_the_runs_equal_one_process(
    pool: GlooPool, ulysses: int, ring: int
) -> None:
    case = Case(odd_set(), cp=ulysses * ring, exchange="ulysses_ring", ulysses=ulysses, spec=TWELVE_HEADS)
    check_float64(pool, case)


def test_replicas_of_four_ranks_each_equal_one_process(pool: GlooPool) -> None:
    check_float64(pool, Case(odd_set(), cp=4, dp=2, exchange="ulysses_ring", ulysses=2))


def test_halos_of_eight_ranks_equal_one_process(pool: GlooPool) -> None:
    metis = Partition(order="metis", balance="edges")
    check_float64(pool, Case(odd_set(), cp=8, exchange="halo", spec=EdgeSpec(), partition=metis))
