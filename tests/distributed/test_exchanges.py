"""However the rows of shards meet, and whichever nodes they are, a model computes what one process computes."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from planner.plan import Partition
from tests.distributed.claims import check_float64
from tests.distributed.edge_model import EdgeSpec
from tests.distributed.equality import SPEC, Case, Width, relative_errors, run_dense, run_parallel
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph, random_edges
from tests.kit.gloo_pool import GlooPool, RanksFailedError

FLOAT32_BAR = 1e-5
HEADS_FOR_ALL = SPEC.model_copy(update={"hidden_size": 24, "num_heads": 12})
SHARED_HEADS = [("ulysses", 2, 2), ("ulysses", 3, 3), ("ulysses", 4, 4), ("ulysses_ring", 4, 2)]
EDGES, SUMS, BOTH = EdgeSpec(), EdgeSpec(with_edges=False, with_sums=True), EdgeSpec(with_sums=True)
METIS = Partition(order="metis", balance="edges")


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


@pytest.mark.parametrize(("exchange", "cp", "ulysses"), SHARED_HEADS)
def test_ranks_that_share_heads_equal_one_process_on_odd_graphs(
    pool: GlooPool, exchange: str, cp: int, ulysses: int
) -> None:
    case = Case(odd_set(), cp=cp, exchange=exchange, ulysses=ulysses, num_micro_batches=2, spec=HEADS_FOR_ALL)
    check_float64(pool, case)


@pytest.mark.parametrize(("exchange", "cp", "ulysses"), SHARED_HEADS)
def test_ranks_that_share_heads_equal_one_process_on_uneven_shards(
    pool: GlooPool, exchange: str, cp: int, ulysses: int
) -> None:
    check_float64(pool, Case(one_graph(), cp=cp, exchange=exchange, ulysses=ulysses, spec=HEADS_FOR_ALL, steps=2))


@pytest.mark.parametrize(("exchange", "cp", "ulysses"), [*SHARED_HEADS, ("halo", 4, 1)])
def test_empty_shards_change_nothing(pool: GlooPool, exchange: str, cp: int, ulysses: int) -> None:
    spec = EDGES if exchange == "halo" else HEADS_FOR_ALL
    dataset = build_set([build_graph(2, [(0, 1)], seed=1), build_graph(1, [], seed=2)])
    check_float64(pool, Case(dataset, cp=cp, exchange=exchange, ulysses=ulysses, spec=spec))


def test_replicas_whose_ranks_share_heads_equal_one_process(pool: GlooPool) -> None:
    check_float64(pool, Case(odd_set(), cp=2, dp=2, exchange="ulysses", ulysses=2, num_micro_batches=2))


@pytest.mark.parametrize(("cp", "dp"), [(1, 2), (2, 2), (1, 4)])
def test_norms_over_a_micro_batch_see_the_rows_of_all_replicas(pool: GlooPool, cp: int, dp: int) -> None:
    check_float64(pool, Case(odd_set(), cp=cp, dp=dp, exchange="halo", spec=EDGES))


def test_recomputed_blocks_run_their_exchange_again(pool: GlooPool) -> None:
    case = Case(odd_set(), cp=2, exchange="ulysses", ulysses=2, recompute=("block.0", "block.1"))
    check_float64(pool, case)
    check_float64(pool, replace(case, exchange="halo", ulysses=1, spec=EDGES))


@pytest.mark.parametrize("cp", [2, 3, 4])
@pytest.mark.parametrize("partition", [Partition(), METIS, Partition(order="random")])
def test_attention_and_messages_along_edges_equal_one_process(pool: GlooPool, cp: int, partition: Partition) -> None:
    case = Case(odd_set(), cp=cp, exchange="halo", spec=EDGES, partition=partition)
    check_float64(pool, case)
    check_float64(pool, replace(case, dataset=one_graph(), steps=2))


@pytest.mark.parametrize("cp", [2, 3, 4])
@pytest.mark.parametrize(("exchange", "spec"), [("reduce", SUMS), ("halo", BOTH)])
def test_linear_attention_by_sums_equals_one_process(pool: GlooPool, cp: int, exchange: str, spec: EdgeSpec) -> None:
    check_float64(pool, Case(one_graph(), cp=cp, exchange=exchange, spec=spec, steps=2))


@pytest.mark.parametrize("order", ["metis", "greedy", "random"])
@pytest.mark.parametrize("balance", ["rows", "edges"])
def test_dense_attention_does_not_see_the_order_of_the_nodes(pool: GlooPool, order: str, balance: str) -> None:
    spec = HEADS_FOR_ALL.model_copy(update={"dropout": 0.4, "input_dropout": 0.2})
    partition = Partition(order=order, balance=balance)
    check_float64(pool, Case(odd_set(), cp=3, partition=partition, spec=spec))
    check_float64(pool, Case(one_graph(), cp=4, exchange="ulysses_ring", ulysses=2, partition=partition, spec=spec))


def test_stages_of_unlike_width_and_exchange_cut_the_same_order(pool: GlooPool) -> None:
    stages = (Width(3, cp=2, exchange="ulysses", ulysses=2), Width(3, cp=2))
    check_float64(pool, Case(odd_set(), stages=stages, partition=Partition(order="random"), num_micro_batches=2))
    edges = (Width(2, cp=3, exchange="halo"), Width(2, cp=1))
    check_float64(pool, Case(odd_set(), stages=edges, spec=EDGES, partition=METIS))


@pytest.mark.parametrize(
    ("exchange", "cp", "ulysses", "spec"),
    [
        ("ulysses", 4, 4, HEADS_FOR_ALL),
        ("ulysses_ring", 4, 2, HEADS_FOR_ALL),
        ("halo", 4, 1, BOTH),
        ("reduce", 4, 1, SUMS),
    ],
)
def test_float32_gradients_are_as_near_to_float64_as_one_process(
    pool: GlooPool, exchange: str, cp: int, ulysses: int, spec: EdgeSpec
) -> None:
    graph = build_graph(300, random_edges(300, 900, seed=3), seed=4)
    case = Case(build_set([graph]), cp=cp, exchange=exchange, ulysses=ulysses, spec=spec)
    exact = run_dense(case).gradients
    own_error = max(relative_errors(run_dense(replace(case, dtype=torch.float32)).gradients, exact=exact).values())
    for outcome in pool.run(run_parallel, replace(case, dtype=torch.float32), world_size=cp):
        errors = relative_errors(outcome.gradients, exact=exact)
        assert max(errors.values()) <= max(FLOAT32_BAR, own_error), errors


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(odd_set(), cp=3, exchange="ulysses", ulysses=3), "2 heads cannot be shared by ulysses_degree 3"),
        (Case(odd_set(), cp=2, exchange="halo"), "'halo' carries no dense attention.*ring, ulysses or ulysses_ring"),
        (Case(odd_set(), cp=2, exchange="reduce", spec=EDGES), "'reduce' carries no edges.*ulysses_ring or halo"),
    ],
)
def test_an_exchange_that_does_not_fit_the_model_is_refused_on_every_rank(
    pool: GlooPool, case: Case, message: str
) -> None:
    with pytest.raises(RanksFailedError, match=message) as failed:
        pool.run(run_parallel, case, world_size=case.world_size)
    assert len(failed.value.errors) == case.world_size
