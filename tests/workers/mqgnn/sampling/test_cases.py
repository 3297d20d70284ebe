"""Cases from the field: what samplers of others got wrong, each by its number in the collection (G8 … G34)."""

import concurrent.futures
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from tests.workers.mqgnn.runs import CPU, Settings, train_by_hand
from tests.workers.mqgnn.sampling.odd_edges import random_csc, star_csc
from tests.workers.mqgnn.sampling.same import assert_same, edges_of
from workers.data.edges import index_dtype
from workers.errors import DatasetInvalidError, SeedsInvalidError
from workers.mqgnn.graph_versions import ChangingGraph, NewestSampler
from workers.mqgnn.preparation import SampleWorker, build_stages
from workers.mqgnn.sampling import native_kernels, numba_kernels
from workers.mqgnn.sampling.csc import along, csc_of, csc_of_edges, reversed_csc
from workers.mqgnn.sampling.layers import LayerOptions, LayerSampler
from workers.mqgnn.sampling.named import build_sampler
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler
from workers.mqgnn.seed_order import BatchTask, SeedOrder

CHAIN = graph_of_edges([(0, 1), (1, 2), (2, 3)], num_nodes=5)  # node 4 is isolated
NAMES = ["uniform", "labor", "fastgcn", "ladies+f+d"]


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_g8_one_seed_gives_one_subgraph_for_any_number_of_workers(name, num_workers):
    csc = csc_of(clustered_graph(200))
    batches = np.random.default_rng(0).permutation(200).reshape(20, 10)
    alone = build_sampler(csc, name=name, fanouts=(4, 3))
    expected = [alone.sample(batch, key=key) for key, batch in enumerate(batches)]

    def work(number: int) -> None:
        sampler = build_sampler(csc, name=name, fanouts=(4, 3))
        for key in range(number, 20, num_workers):
            assert_same(sampler.sample(batches[key], key=key), expected[key])

    with concurrent.futures.ThreadPoolExecutor(num_workers) as threads:
        assert len([*threads.map(work, range(num_workers))]) == num_workers


@pytest.mark.parametrize("name", NAMES[1:])
def test_g9_losses_are_equal_bit_for_bit_whatever_runs_beside_what(name):
    graph = clustered_graph(120)
    serial = train_by_hand(graph, Settings(epochs=1, model="gcn", sampler=name, fanouts=(8, 6)))[1]
    settings = Settings(epochs=1, model="gcn", sampler=name, fanouts=(8, 6), pipelined=True, num_sampling_workers=2)
    assert train_by_hand(graph, settings)[1] == serial
    assert np.isfinite(serial).all()


@pytest.mark.parametrize("model", ["gcn", "graphsage"])
@pytest.mark.parametrize("name", NAMES)
def test_g10_g11_a_batch_of_isolated_nodes_trains_on_finite_losses(name, model):
    graph = graph_of_edges([], num_nodes=6)
    losses = train_by_hand(graph, Settings(epochs=1, model=model, sampler=name, batch_size=4))[1]
    assert len(losses) == 2
    assert np.isfinite(losses).all()


@pytest.mark.parametrize("rule", ["uniform", "weighted"])
def test_g13_replacement_on_degree_zero_gives_no_edge(rule, kernels):
    options = NeighborOptions(rule, with_replacement=True)
    sampler = NeighborSampler(star_csc(3, weights=[1, 1, 1]), fanouts=(5, 5), options=options, kernels=kernels)
    assert sampler.sample([2], key=1).num_edges_per_hop == (0, 0)
    assert sampler.sample([0], key=1).num_edges_per_hop == (5, 0)


@pytest.mark.parametrize(("source", "words"), [(-3, "names node -3"), (9, "names node 9"), (2**40, "names node")])
def test_g14_a_wrong_id_is_one_error_that_names_the_first_bad_edge(source, words):
    with pytest.raises(DatasetInvalidError, match=f"edge 1 .*{words}"):
        csc_of_edges(np.array([0, source, -1]), np.array([1, 2, 0]), num_nodes=4)


def test_g15_numbers_are_wide_where_edges_need_it():
    assert index_dtype(10, 2**31 - 1) == np.int32
    assert index_dtype(10, 2**31) == np.int64
    assert index_dtype(2**31, 10) == np.int64


def test_g17_a_weight_stays_with_its_edge_in_any_order():
    rng = np.random.default_rng(0)
    sources, targets, weights = rng.integers(9, size=60), rng.integers(9, size=60), rng.random(60).astype(np.float32)
    csc = csc_of_edges(sources, targets, num_nodes=9, weights=weights)
    for some in (csc, reversed_csc(reversed_csc(csc))):
        ends = np.repeat(np.arange(9), np.diff(some.indptr))
        np.testing.assert_array_equal(some.indices, sources[some.edge_ids])
        np.testing.assert_array_equal(ends, targets[some.edge_ids])
        np.testing.assert_array_equal(some.weights, weights[some.edge_ids])


def test_g17_sampled_edges_are_told_by_their_own_numbers(kernels):
    csc = random_csc()
    sampler = NeighborSampler(csc, fanouts=(3, 2), options=NeighborOptions(edge_ids=True), kernels=kernels)
    subgraph = sampler.sample(np.arange(20), key=1)
    known = dict(zip(csc.edge_ids.tolist(), csc.indices.tolist(), strict=True))
    assert [known[edge] for edge in subgraph.edge_ids.tolist()] == [source for source, _ in edges_of(subgraph)]


def test_g18_messages_flow_the_way_that_was_asked_for():
    there = build_sampler(csc_of(along(CHAIN, direction="in")), name="uniform", fanouts=(-1, -1))
    back = build_sampler(csc_of(along(CHAIN, direction="out")), name="uniform", fanouts=(-1, -1))
    assert edges_of(there.sample([2], key=1)) == [(1, 2), (0, 1)]
    assert edges_of(back.sample([1], key=1)) == [(2, 1), (3, 2)]


def test_g18_types_of_edges_turn_with_them():
    typed = replace(CHAIN, edge_types=np.array([5, 6, 7], dtype=np.uint8))
    turned = along(typed, direction="out")
    assert turned.indices.tolist() == [1, 2, 3]
    assert turned.edge_types.tolist() == [5, 6, 7]
    star = graph_of_edges([(0, 2), (1, 2), (1, 0)], num_nodes=3)  # by target: 1 -> 0, 0 -> 2, 1 -> 2
    turned = along(replace(star, edge_types=np.array([9, 3, 4], dtype=np.uint8)), direction="out")
    assert turned.indices.tolist() == [2, 0, 2]
    assert turned.edge_types.tolist() == [3, 9, 4]


def test_g18_first_batches_without_an_edge_are_warned_about_once(caplog):
    graph = graph_of_edges([(seed, 9) for seed in range(8)], num_nodes=10)
    order = SeedOrder(np.arange(8), 2, seed=0)
    samplers = NewestSampler(
        ChangingGraph(graph), build=lambda graph: build_sampler(csc_of(graph), name="uniform", fanouts=(2,))
    )
    worker = SampleWorker(samplers, order=order, rank=0)
    with caplog.at_level(logging.WARNING):
        for batch in [*range(4), *range(4)]:
            worker(BatchTask(epoch=1, batch=batch))
    assert ["set model.direction to 'out'" in record.message for record in caplog.records] == [True]


def test_g21_no_edge_of_weight_zero_is_ever_drawn_and_none_from_zeros_alone(kernels):
    for with_replacement in (False, True):
        options = NeighborOptions("weighted", with_replacement=with_replacement, edge_ids=True)
        for weights, possible in [([0, 2, 0, 1], {1, 3}), ([0, 0, 0, 0], set())]:
            sampler = NeighborSampler(star_csc(4, weights=weights), fanouts=(3,), options=options, kernels=kernels)
            found = {edge for key in range(50) for edge in sampler.sample([0], key=key).edge_ids.tolist()}
            assert found == possible


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_g21_a_weight_that_is_none_is_refused_by_its_edge(weight):
    with pytest.raises(DatasetInvalidError, match="edge 1 has the weight"):
        star_csc(3, weights=[1, weight, 1])


@pytest.mark.parametrize("rule", ["uniform", "weighted", "labor"])
def test_g34_no_edge_is_later_than_its_seed_though_times_are_in_no_order(rule, kernels):
    csc = random_csc()
    options = NeighborOptions(rule, disjoint=True, edge_ids=True)
    sampler = NeighborSampler(csc, fanouts=(4, 3), options=options, kernels=kernels)
    times, seeds = np.arange(30) % 10, np.arange(30)
    subgraph = sampler.sample(seeds, key=3, times=times)
    time_of = dict(zip(csc.edge_ids.tolist(), csc.times.tolist(), strict=True))
    trees = subgraph.trees[subgraph.indices]
    assert len(trees) > 50
    assert all(time_of[edge] <= times[tree] for edge, tree in zip(subgraph.edge_ids.tolist(), trees, strict=True))


def test_disjoint_subgraphs_share_no_node_and_take_a_seed_twice(kernels):
    csc = csc_of(clustered_graph(60, degree=10))
    sampler = NeighborSampler(csc, fanouts=(3, 3), options=NeighborOptions(disjoint=True), kernels=kernels)
    subgraph = sampler.sample([4, 9, 4], key=1)
    targets = np.repeat(np.arange(len(subgraph.indptr) - 1), np.diff(subgraph.indptr))
    np.testing.assert_array_equal(subgraph.trees[subgraph.indices], subgraph.trees[targets])
    assert subgraph.trees[:3].tolist() == [0, 1, 2]
    with pytest.raises(SeedsInvalidError, match="seed 60 at position 1 is no node"):
        sampler.sample([4, 60], key=1)


def test_a_last_hop_without_local_numbers_names_its_sources_in_the_graph(kernels):
    csc, seeds = csc_of(clustered_graph(100)), np.arange(10)
    whole = NeighborSampler(csc, fanouts=(3, 2), kernels=kernels).sample(seeds, key=1)
    options = NeighborOptions(relabel_last_hop=False)
    short = NeighborSampler(csc, fanouts=(3, 2), options=options, kernels=kernels).sample(seeds, key=1)
    np.testing.assert_array_equal(short.source_ids, whole.node_ids[whole.indices])
    np.testing.assert_array_equal(short.indptr, whole.indptr)
    np.testing.assert_array_equal(short.indices, whole.indices[: whole.num_edges_per_hop[0]])
    np.testing.assert_array_equal(short.node_ids, whole.node_ids[: sum(whole.num_nodes_per_hop[:2])])


@pytest.mark.parametrize("model", ["gcn", "graphsage"])
def test_layers_of_all_nodes_train_as_all_neighbours_do(model):
    graph = clustered_graph(80)
    by_nodes, by_layers = (
        train_by_hand(graph, Settings(epochs=1, model=model, fanouts=(-1, -1), sampler=name))[1]
        for name in ("uniform", "ladies")
    )
    np.testing.assert_allclose(by_layers, by_nodes, rtol=1e-9)


def test_importance_samples_reach_the_mini_batch():
    graph = clustered_graph(80)
    order = SeedOrder(np.arange(80), 16, seed=0)
    sample, prepare = build_stages(graph, order=order, fanouts=(8, 8), rank=0, device=CPU, sampler="ladies+f")
    batch = prepare.make_worker()(sample.make_worker()(BatchTask(epoch=1, batch=0)))
    assert not batch.nested
    assert batch.edge_weights.dtype == torch.float32
    assert len(batch.edge_weights) == len(batch.indices) == sum(batch.num_sampled_edges_per_hop)
    assert len(batch.indptr) == 2 * 16 + batch.num_sampled_nodes_per_hop[1] + 2


def test_a_layer_has_no_more_new_nodes_than_were_asked_for(kernels):
    sampler = LayerSampler(csc_of(clustered_graph(200)), sizes=(12, 7), options=LayerOptions(), kernels=kernels)
    for key in range(5):
        _, first, second = sampler.sample(np.arange(40), key=key).num_nodes_per_hop
        assert first <= 12
        assert second <= 7


def test_g22_without_the_compiled_library_our_own_plain_form_samples(monkeypatch):
    monkeypatch.setattr(native_kernels, "native_library", lambda: None)
    kernels = native_kernels.sampler_kernels.__wrapped__()
    assert kernels is numba_kernels
    csc = csc_of(clustered_graph(100))
    plain = NeighborSampler(csc, fanouts=(3, 2), kernels=kernels).sample(np.arange(10), key=1)
    assert_same(build_sampler(csc, name="uniform", fanouts=(3, 2)).sample(np.arange(10), key=1), plain)
