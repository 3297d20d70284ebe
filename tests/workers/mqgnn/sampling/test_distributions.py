"""Chi-square tests: every sampler draws what its definition says, and its weights estimate without bias."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.sampling.odd_edges import star_csc
from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling.csc import Csc, csc_of
from workers.mqgnn.sampling.layers import LayerOptions, LayerSampler, estimator
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler

DRAWS = 6000
WEIGHTS = [0.0, 1.0, 2.0, 4.0, 0.0, 0.5, 8.0]


def drawn(csc: Csc, *, fanout: int, kernels: Kernels, **options) -> np.ndarray:
    """The leaves drawn for node 0 of a star, once per row: [DRAWS, drawn]."""
    sampler = NeighborSampler(
        csc, fanouts=(fanout,), options=NeighborOptions(edge_ids=True, **options), kernels=kernels
    )
    return [sampler.sample([0], key=stream_key(3, draw)).edge_ids for draw in range(DRAWS)]


def assert_fits(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Pearson's statistic of independent draws; an impossible outcome never came."""
    assert counts[probabilities == 0].sum() == 0
    counts, probabilities = counts[probabilities > 0], probabilities[probabilities > 0]
    expected = probabilities * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, df=len(counts) - 1)


def test_weighted_draws_with_replacement_follow_the_weights(kernels):
    found = np.concatenate(
        drawn(star_csc(7, weights=WEIGHTS), fanout=5, kernels=kernels, rule="weighted", with_replacement=True)
    )
    assert len(found) == 5 * DRAWS
    assert_fits(np.bincount(found, minlength=7), np.array(WEIGHTS) / sum(WEIGHTS))


def test_weighted_draws_without_replacement_come_in_turn_by_the_weights_that_are_left(kernels):
    found = np.stack(drawn(star_csc(7, weights=WEIGHTS), fanout=2, kernels=kernels, rule="weighted"))
    weights = np.array(WEIGHTS)
    shares = weights / weights.sum()
    pairs = shares[:, None] * weights[None, :] / (weights.sum() - weights)[:, None]
    np.fill_diagonal(pairs, 0)
    assert_fits(np.bincount(found[:, 0] * 7 + found[:, 1], minlength=49), pairs.ravel())


def test_uniform_draws_with_replacement_are_uniform_and_independent(kernels):
    found = np.stack(drawn(star_csc(5), fanout=2, kernels=kernels, with_replacement=True))
    assert_fits(np.bincount(found[:, 0] * 5 + found[:, 1], minlength=25), np.full(25, 1 / 25))


def test_labor_takes_each_neighbour_with_the_same_chance_and_independently(kernels):
    found = drawn(star_csc(4), fanout=1, kernels=kernels, rule="labor")
    patterns = np.array([sum(1 << edge for edge in edges.tolist()) for edges in found])
    sizes = np.array([pattern.bit_count() for pattern in range(16)])
    assert_fits(np.bincount(patterns, minlength=16), 0.25**sizes * 0.75 ** (4 - sizes))


def test_labor_takes_a_source_for_all_targets_or_none_of_the_same_degree(kernels):
    graph = csc_of(clustered_graph(200, degree=12))
    twice = Csc(  # every node once more: the same neighbours, another target
        indptr=np.concatenate([graph.indptr, graph.indptr[1:] + graph.indptr[-1]]),
        indices=np.concatenate([graph.indices, graph.indices]),
        num_sources=graph.num_sources,
    )
    sampler = NeighborSampler(
        replace(twice, num_sources=400), fanouts=(3,), options=NeighborOptions("labor"), kernels=kernels
    )
    subgraph = sampler.sample([7, 207], key=1)
    first, second = np.split(subgraph.indices, [subgraph.indptr[1]])
    np.testing.assert_array_equal(first, second)


def test_labor_meets_fewer_nodes_than_uniform_for_as_many_edges(kernels):
    csc = csc_of(clustered_graph(400, degree=40))
    found = {}
    for rule in ("uniform", "labor"):
        sampler = NeighborSampler(csc, fanouts=(5,), options=NeighborOptions(rule), kernels=kernels)
        samples = [sampler.sample(np.arange(100), key=key) for key in range(20)]
        found[rule] = sum(s.num_nodes_per_hop[1] for s in samples), sum(s.num_edges_per_hop[0] for s in samples)
    assert found["labor"][1] == pytest.approx(found["uniform"][1], rel=0.1)
    assert found["labor"][0] < 0.8 * found["uniform"][0]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("importance", ["fastgcn", "ladies"])
def test_the_first_node_of_a_layer_is_drawn_by_importance(importance, flat, kernels):
    csc = csc_of(clustered_graph(30, degree=4))
    targets = np.arange(30) if importance == "fastgcn" else np.array([3, 11, 19])
    degrees = np.diff(csc.indptr)
    norms = np.zeros(30)
    for target in targets:
        neighbors = csc.indices[csc.indptr[target] : csc.indptr[target + 1]]
        norms[neighbors] += 1 / ((degrees[target] + 1) * (degrees[neighbors] + 1))
    norms = np.sqrt(norms) if flat else norms
    options = LayerOptions(importance=importance, flat=flat)
    sampler = LayerSampler(csc, sizes=(1,), options=options, kernels=kernels)
    seeds = np.array([3, 11, 19]) if importance == "ladies" else np.arange(30)
    counts = np.zeros(30)
    for draw in range(DRAWS):
        subgraph = sampler.sample(seeds, key=stream_key(8, draw))
        counts[subgraph.node_ids[subgraph.indices[0]]] += 1
    assert_fits(counts, norms / norms.sum())


def test_debiased_weights_are_those_of_the_recursion_over_draws():
    shares = np.array([0.3, 0.05, 0.2, 0.1])
    weights: list[float] = []
    for k, share in enumerate(shares):
        alpha = 10 / ((k + 1) * (10 - k))
        weights = [weight * (1 - alpha) + alpha for weight in weights]
        weights.append(alpha * (1 - shares[:k].sum()) / share)
    np.testing.assert_allclose(estimator(shares, 10, debiased=True), weights, rtol=1e-12)


def test_debiased_weights_of_equal_nodes_are_those_of_a_simple_random_sample():
    np.testing.assert_allclose(estimator(np.full(4, 0.1), 10, debiased=True), np.full(4, 10 / 4))


@pytest.mark.parametrize("importance", ["fastgcn", "ladies"])
def test_debiased_sums_over_sampled_neighbours_are_right_in_expectation(importance, kernels):
    csc, values = csc_of(clustered_graph(40, degree=8)), np.arange(1.0, 41.0)
    options = LayerOptions(importance=importance, flat=True, debiased=True)
    sampler, target = LayerSampler(csc, sizes=(6,), options=options, kernels=kernels), np.array([5, 9])
    sums = np.empty(DRAWS)
    for draw in range(DRAWS):
        subgraph = sampler.sample(target, key=stream_key(2, draw))
        row = slice(0, subgraph.indptr[1])
        sums[draw] = subgraph.edge_weights[row] @ values[subgraph.node_ids[subgraph.indices[row]]]
    exact = values[csc.indices[csc.indptr[5] : csc.indptr[6]]].sum()
    assert abs(sums.mean() - exact) < 5 * sums.std() / np.sqrt(DRAWS)
