"""Every sampler, in every form of its inner loops, against the plain reference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.mqgnn.sampling.forms import ALL_KERNELS
from tests.workers.mqgnn.sampling.odd_edges import random_csc
from tests.workers.mqgnn.sampling.reference import exponential, reference_layers, reference_sample
from tests.workers.mqgnn.sampling.same import assert_same
from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc, csc_of_edges
from workers.mqgnn.sampling.layers import LayerOptions, LayerSampler
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler

NEIGHBOR_OPTIONS = [
    NeighborOptions(rule=rule, with_replacement=with_replacement, disjoint=disjoint, edge_ids=True)
    for rule, with_replacement in [
        ("uniform", False),
        ("uniform", True),
        ("weighted", False),
        ("weighted", True),
        ("labor", False),
    ]
    for disjoint in (False, True)
]
LAYER_OPTIONS = [
    LayerOptions(importance=importance, flat=flat, debiased=debiased, edge_ids=True)
    for importance in ("fastgcn", "ladies")
    for flat in (False, True)
    for debiased in (False, True)
]


def in_wide_indices(csc: Csc) -> Csc:
    return replace(csc, indices=csc.indices.astype(np.int64), edge_ids=csc.edge_ids.astype(np.int64))


def check_neighbors(
    csc: Csc,
    seeds: np.ndarray,
    *,
    fanouts: tuple[int, ...],
    options: NeighborOptions,
    key: int,
    kernels: Kernels,
    times: np.ndarray | None = None,
) -> None:
    sampler = NeighborSampler(csc, fanouts=fanouts, options=options, kernels=kernels)
    for _ in range(2):  # the second time in used memory
        found = sampler.sample(seeds, key=key, times=times)
    assert_same(found, reference_sample(csc, seeds, fanouts=fanouts, options=options, key=key, times=times))


def check_layers(
    csc: Csc, seeds: np.ndarray, *, sizes: tuple[int, ...], options: LayerOptions, key: int, kernels: Kernels
) -> None:
    sampler = LayerSampler(csc, sizes=sizes, options=options, kernels=kernels)
    for _ in range(2):
        found = sampler.sample(seeds, key=key)
    streams = [int(stream_key(key, hop)) for hop in range(len(sizes))]
    assert_same(found, reference_layers(csc, seeds, sizes=sizes, streams=streams, options=options))


@pytest.mark.parametrize("fanouts", [(3, 2), (-1, 2), (4, -1), (20, 1, 1), (0,)])
@pytest.mark.parametrize("options", NEIGHBOR_OPTIONS, ids=str)
def test_neighbour_samples_equal_those_of_the_reference(options, fanouts, kernels):
    csc, rng = random_csc(), np.random.default_rng(1)
    for key in range(3):
        seeds = rng.permutation(120)[:15]
        check_neighbors(csc, seeds, fanouts=fanouts, options=options, key=key, kernels=kernels)


@pytest.mark.parametrize("options", NEIGHBOR_OPTIONS[::2], ids=str)
def test_samples_of_wide_indices_equal_those_of_the_reference(options, kernels):
    csc = in_wide_indices(random_csc())
    check_neighbors(csc, np.arange(20), fanouts=(3, 2), options=options, key=2**64 - 1, kernels=kernels)


@pytest.mark.parametrize("options", NEIGHBOR_OPTIONS[1::2], ids=str)
def test_temporal_samples_equal_those_of_the_reference(options, kernels):
    times = np.arange(20) % 11 - 1  # from before the first edge to after the last
    check_neighbors(random_csc(), np.arange(20), fanouts=(3, 2), options=options, key=7, kernels=kernels, times=times)


@pytest.mark.parametrize("sizes", [(8, 8), (30, 5, 3), (-1, 4), (1000, 1000), (0,)])
@pytest.mark.parametrize("options", LAYER_OPTIONS, ids=str)
def test_layer_samples_equal_those_of_the_reference(options, sizes, kernels):
    csc, rng = random_csc(), np.random.default_rng(1)
    for key in range(3):
        seeds = rng.permutation(120)[:6]
        check_layers(csc, seeds, sizes=sizes, options=options, key=key, kernels=kernels)
    check_layers(in_wide_indices(csc), seeds, sizes=sizes, options=options, key=9, kernels=kernels)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_nodes=st.integers(1, 12), key=st.integers(0, 2**64 - 1))
def test_odd_graphs_are_sampled_like_the_reference(data, num_nodes, key):
    node = st.integers(0, num_nodes - 1)
    edges = np.array(data.draw(st.lists(st.tuples(node, node), max_size=40)), dtype=np.int64).reshape(-1, 2)
    weight = st.sampled_from([0.0, 1e-30, 0.5, 3.0, 1e30])
    weights = np.array(data.draw(st.lists(weight, min_size=len(edges), max_size=len(edges))))
    csc = csc_of_edges(edges[:, 0], edges[:, 1], num_nodes=num_nodes, weights=weights)
    seeds = np.array(data.draw(st.lists(node, unique=True, max_size=num_nodes)), dtype=np.int64)
    fanouts = tuple(data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3)))
    options = data.draw(st.sampled_from([*NEIGHBOR_OPTIONS, *LAYER_OPTIONS]))
    for kernels in ALL_KERNELS.values():
        if isinstance(options, LayerOptions):
            check_layers(csc, seeds, sizes=fanouts, options=options, key=key, kernels=kernels)
        else:
            check_neighbors(csc, seeds, fanouts=fanouts, options=options, key=key, kernels=kernels)


def test_exponential_numbers_are_those_of_the_logarithm():
    bits = np.random.default_rng(0).integers(2**64, size=2000, dtype=np.uint64)
    bits = np.concatenate([bits, np.array([0, 1, 2**11, 2**63, 2**64 - 1], dtype=np.uint64)])
    found = [numba_kernels.exponential(value) for value in bits]
    assert found == [exponential(int(value)) for value in bits]
    shares = ((bits >> np.uint64(11)) | np.uint64(1)).astype(np.float64) / 2**53
    np.testing.assert_allclose(found, -np.log1p(shares - 1) / np.log(2), rtol=3e-10)
    assert min(found) > 0
