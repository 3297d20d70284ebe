"""Sampling towards preferred nodes: the reference's samples in every form, more of the preferred, and no bias."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.sampling.forms import ALL_KERNELS
from tests.workers.mqgnn.sampling.odd_edges import random_csc
from tests.workers.mqgnn.sampling.reference import reference_preferring
from tests.workers.mqgnn.sampling.same import assert_same
from workers.models.blocks import SampledEdges
from workers.models.registry import build_model
from workers.models.sampled import forward_blocks
from workers.mqgnn.sampling.csc import Csc, csc_of, csc_of_edges
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.spec import SPEC_OF_MODEL

GRAPH = clustered_graph(60, degree=40)
PREFERRED = np.random.default_rng(5).random(60) < 0.3


def samples(
    csc: Csc, seeds: np.ndarray, *, fanouts: tuple[int, ...], preference: Preference, kernels: Kernels
) -> Iterator[tuple[SampledSubgraph, SampledSubgraph]]:
    """Of some keys, ours and the reference's."""
    sampler = NeighborSampler(csc, fanouts=fanouts, preference=preference, kernels=kernels)
    for key in (3, 2**64 - 1):
        expected = reference_preferring(csc, seeds, fanouts=fanouts, key=key, preference=preference)
        yield sampler.sample(seeds, key=key), expected


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("factor", [1.0, 3.0, 1000.0])
def test_samples_equal_those_of_the_reference(factor, share, kernels):
    csc, seeds = random_csc(), np.random.default_rng(1).permutation(120)[:15]
    preference = Preference(np.random.default_rng(2).random(csc.num_sources) < share, factor=factor)
    wide = replace(csc, indices=csc.indices.astype(np.int64))
    for form in (csc, wide):
        for fanouts in ((3, 2), (-1, 2), (20, 1), (0,)):
            for ours, theirs in samples(form, seeds, fanouts=fanouts, preference=preference, kernels=kernels):
                assert len(ours.node_ids) >= len(seeds)
                assert_same(ours, theirs)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), num_nodes=st.integers(1, 12), factor=st.floats(1, 1e6))
def test_odd_graphs_are_sampled_like_the_reference(data, num_nodes, factor):
    node = st.integers(0, num_nodes - 1)
    edges = np.array(data.draw(st.lists(st.tuples(node, node), max_size=60)), dtype=np.int64).reshape(-1, 2)
    csc = csc_of_edges(edges[:, 0], edges[:, 1], num_nodes=num_nodes)
    seeds = np.array(data.draw(st.lists(node, unique=True, max_size=num_nodes)), dtype=np.int64)
    preferred = np.array(data.draw(st.lists(st.booleans(), min_size=num_nodes, max_size=num_nodes)), dtype=bool)
    fanouts = tuple(data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3)))
    for kernels in ALL_KERNELS.values():
        preference = Preference(preferred, factor=factor)
        for ours, theirs in samples(csc, seeds, fanouts=fanouts, preference=preference, kernels=kernels):
            assert len(ours.num_nodes_per_hop) == len(fanouts) + 1
            assert_same(ours, theirs)


def test_preferred_neighbours_are_drawn_as_often_as_the_factor_says():
    sampler = NeighborSampler(csc_of(GRAPH), fanouts=(4,), preference=Preference(PREFERRED, factor=3.0))
    drawn = np.zeros(60)
    for key in range(3000):
        drawn += np.bincount(sampler.sample(np.array([7]), key=key).node_ids[1:], minlength=60)
    neighbors = GRAPH.indices[GRAPH.indptr[7] : GRAPH.indptr[8]]
    hot, cold = neighbors[PREFERRED[neighbors]], neighbors[~PREFERRED[neighbors]]
    assert drawn[neighbors].sum() == 4 * 3000 == drawn.sum()
    assert drawn[hot].mean() / drawn[cold].mean() == pytest.approx(3.0, rel=0.1)
    for kind in (hot, cold):  # all alike: within five standard deviations of a count
        assert np.abs(drawn[kind] - drawn[kind].mean()).max() < 5 * np.sqrt(drawn[kind].mean())


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gin"])
@pytest.mark.parametrize("factor", [1.0, 8.0])
def test_outputs_have_those_of_all_neighbours_as_their_mean(name, factor):
    """One layer is linear in the sums over neighbours, so the mean over many draws must be its value over all."""
    torch.manual_seed(0)
    spec = SPEC_OF_MODEL[name](name=name, fanouts=(3,), dropout=0.0)
    model = build_model(spec, num_features=8, num_classes=3).double()
    if name == "gin":
        for layer in model.convs:  # its two linear layers with ReLU between are no linear function of the sum
            layer.nn = torch.nn.Linear(8, 3).double()
    seeds = np.arange(20)

    def outputs(sampler: NeighborSampler, key: int) -> torch.Tensor:
        sampled = sampler.sample(seeds, key=key)
        weights = sampled.edge_weights
        edges = SampledEdges(
            node_ids=torch.from_numpy(sampled.node_ids),
            degrees=torch.from_numpy(GRAPH.in_degrees(sampled.node_ids)),
            indptr=torch.from_numpy(sampled.indptr),
            indices=torch.from_numpy(sampled.indices),
            num_nodes_per_hop=sampled.num_nodes_per_hop,
            num_edges_per_hop=sampled.num_edges_per_hop,
            edge_weights=None if weights is None else torch.from_numpy(weights),
        )
        return forward_blocks(model, torch.from_numpy(GRAPH.features.gather(sampled.node_ids)).double(), edges)

    with torch.no_grad():
        whole = outputs(NeighborSampler(csc_of(GRAPH), fanouts=(-1,)), 0)
        sampler = NeighborSampler(csc_of(GRAPH), fanouts=(3,), preference=Preference(PREFERRED, factor=factor))
        draws = torch.stack([outputs(sampler, key) for key in range(600)])
    errors = (draws.mean(0) - whole) / (draws.std(0) / np.sqrt(len(draws)))
    assert errors.abs().max() < 4.5  # in standard errors, the largest of sixty
    assert errors.square().mean() < 2


def test_only_plain_uniform_sampling_takes_a_preference():
    with pytest.raises(AssertionError, match="plain uniform"):
        NeighborSampler(
            csc_of(GRAPH),
            fanouts=(2,),
            options=NeighborOptions("labor"),
            preference=Preference(PREFERRED, factor=2.0),
        )
