"""Spread over ranks in any way, the transformer computes what one dense process computes: loss, outputs, gradients."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.distributed.claims import check_float64
from tests.distributed.equality import SPEC, Case, relative_errors, run_dense, run_parallel
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph, random_edges
from tests.kit.gloo_pool import GlooPool

FLOAT32_BAR = 1e-5
FACTORISATIONS = [(cp, dp) for cp in range(1, 5) for dp in range(1, 5) if cp * dp <= 4]


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


@pytest.mark.parametrize(("cp", "dp"), FACTORISATIONS)
def test_every_factorisation_of_up_to_four_ranks_equals_one_dense_process(pool: GlooPool, cp: int, dp: int) -> None:
    check_float64(pool, Case(odd_set(), cp=cp, dp=dp, num_micro_batches=2, steps=3))


@pytest.mark.parametrize("cp", [1, 2, 3, 4])
def test_one_graph_cut_into_uneven_shards_equals_one_dense_process(pool: GlooPool, cp: int) -> None:
    check_float64(pool, Case(one_graph(num_nodes=37), cp=cp, steps=3))


def test_more_ranks_than_nodes_leaves_empty_shards_and_changes_nothing(pool: GlooPool) -> None:
    check_float64(pool, Case(build_set([build_graph(2, [(0, 1)], seed=1)]), cp=4))


def test_more_replicas_than_graphs_leaves_idle_replicas_and_changes_nothing(pool: GlooPool) -> None:
    check_float64(pool, Case(one_graph(num_nodes=9), cp=1, dp=3))


def test_batches_smaller_than_the_set_train_alike_on_any_replicas(pool: GlooPool) -> None:
    check_float64(pool, Case(odd_set(), cp=2, dp=2, num_micro_batches=2, batch_size=3, steps=5))


@pytest.mark.parametrize("units", [("block.0",), SPEC.units])
def test_recomputation_changes_no_result(pool: GlooPool, units: tuple[str, ...]) -> None:
    case = Case(odd_set(), cp=2, dp=2, steps=2, spec=SPEC.model_copy(update={"dropout": 0.4, "input_dropout": 0.3}))
    kept = pool.run(run_parallel, case)
    recomputed = pool.run(run_parallel, replace(case, recompute=units))
    for left, right in zip(kept, recomputed, strict=True):
        assert left.losses == right.losses
        for name, parameter in left.parameters.items():
            assert torch.equal(parameter, right.parameters[name]), name


@pytest.mark.parametrize(("cp", "dp"), [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)])
def test_dropout_drops_the_same_elements_on_any_number_of_ranks(pool: GlooPool, cp: int, dp: int) -> None:
    spec = SPEC.model_copy(update={"dropout": 0.5, "input_dropout": 0.3})
    check_float64(pool, Case(odd_set(), cp=cp, dp=dp, spec=spec, steps=3))


def test_all_ranks_hold_the_same_bits_after_training(pool: GlooPool) -> None:
    case = Case(odd_set(), cp=2, dp=2, dtype=torch.float32, steps=3)
    first, *others = pool.run(run_parallel, case)
    for other in others:
        for name, parameter in first.parameters.items():
            assert torch.equal(parameter, other.parameters[name]), name


@pytest.mark.parametrize(("cp", "dp"), FACTORISATIONS)
def test_float32_gradients_are_as_near_to_float64_as_the_dense_process(pool: GlooPool, cp: int, dp: int) -> None:
    check_float32(pool, Case(odd_set(), cp=cp, dp=dp))


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_float32_stays_near_on_a_graph_of_many_pairs(pool: GlooPool, cp: int) -> None:
    graph = build_graph(600, random_edges(600, 1500, seed=3), seed=4)
    check_float32(pool, Case(build_set([graph]), cp=cp, spec=SPEC.model_copy(update={"hidden_size": 32})))


def check_float32(pool: GlooPool, case: Case) -> None:
    exact = run_dense(case).gradients
    own_error = max(relative_errors(run_dense(replace(case, dtype=torch.float32)).gradients, exact=exact).values())
    for outcome in pool.run(run_parallel, replace(case, dtype=torch.float32), world_size=case.world_size):
        errors = relative_errors(outcome.gradients, exact=exact)
        assert max(errors.values()) <= max(FLOAT32_BAR, own_error), errors
