import concurrent.futures

import numpy as np
import pytest
from scipy.stats import chi2

from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges, in_neighbors
from tests.workers.mqgnn.sampling.reference import reference_sample
from tests.workers.mqgnn.sampling.same import assert_same, edges_of
from workers.data.graph import Graph
from workers.errors import SeedsInvalidError
from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling.csc import csc_of
from workers.mqgnn.sampling.subgraph import SampledSubgraph

STAR = graph_of_edges([(leaf, 0) for leaf in range(1, 11)], num_nodes=12)  # node 11 is isolated


@pytest.mark.parametrize("fanouts", [(1,), (3, 2), (-1, 2), (4, -1), (2, 2, 2), (100, 100)])
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_samples_equal_those_of_the_plain_reference(sampler_of, fanouts, index_dtype):
    graph = clustered_graph(200)
    graph = Graph(graph.indptr, graph.indices.astype(index_dtype), graph.features, graph.y, graph.split)
    sampler, rng = sampler_of(graph, fanouts=fanouts), np.random.default_rng(1)
    for batch in range(10):
        seeds, key = rng.permutation(200)[:20], stream_key(5, batch)
        assert_same(sampler.sample(seeds, key=key), reference_sample(csc_of(graph), seeds, fanouts=fanouts, key=key))


def test_degrees_above_a_machine_word_are_sampled_like_the_reference(sampler_of):
    graph = graph_of_edges([(leaf, 0) for leaf in range(1, 300)], num_nodes=300)
    sampler = sampler_of(graph, fanouts=(150,))
    for key in range(20):
        assert_same(sampler.sample([0], key=key), reference_sample(csc_of(graph), [0], fanouts=(150,), key=key))


def test_edges_exist_and_none_is_drawn_twice(sampler_of):
    graph = clustered_graph(300)
    subgraph = sampler_of(graph, fanouts=(3, 3)).sample(np.arange(40), key=1)
    edges = edges_of(subgraph)
    assert len(set(edges)) == len(edges)
    assert all(source in in_neighbors(graph, target) for source, target in edges)


def test_nodes_are_ordered_by_hop_and_met_by_the_hop_before(sampler_of):
    graph = clustered_graph(300)
    seeds = np.array([7, 3, 250])
    subgraph = sampler_of(graph, fanouts=(2, 2)).sample(seeds, key=1)
    np.testing.assert_array_equal(subgraph.node_ids[:3], seeds)
    assert len(set(subgraph.node_ids.tolist())) == len(subgraph.node_ids) == sum(subgraph.num_nodes_per_hop)
    after_hop_1 = sum(subgraph.num_nodes_per_hop[:2])
    assert subgraph.indices[: subgraph.num_edges_per_hop[0]].max() < after_hop_1
    assert set(range(after_hop_1, len(subgraph.node_ids))) <= set(
        subgraph.indices[subgraph.num_edges_per_hop[0] :].tolist()
    )
    assert len(subgraph.indptr) - 1 == after_hop_1


@pytest.mark.parametrize("fanout", [1, 3, 7])
def test_every_neighbour_is_equally_likely(sampler_of, fanout):
    sampler, draws = sampler_of(STAR, fanouts=(fanout,)), 20_000
    counts = np.zeros(12)
    for key in range(draws):
        counts[sampler.sample([0], key=stream_key(9, key)).node_ids[1:]] += 1
    expected = draws * fanout / 10
    statistic = ((counts[1:11] - expected) ** 2 / expected).sum() * 10 / (10 - fanout) * 9 / 10
    assert counts[11] == 0
    assert statistic < chi2.isf(1e-6, df=9)


def test_every_pair_of_neighbours_is_equally_likely(sampler_of):
    sampler, draws = sampler_of(STAR, fanouts=(2,)), 20_000
    counts = np.zeros((12, 12))
    for key in range(draws):
        low, high = sorted(sampler.sample([0], key=stream_key(4, key)).node_ids[1:].tolist())
        counts[low, high] += 1
    observed = counts[np.triu_indices(10, k=1)[0] + 1, np.triu_indices(10, k=1)[1] + 1]
    assert observed.sum() == draws
    assert ((observed - draws / 45) ** 2 / (draws / 45)).sum() < chi2.isf(1e-6, df=44)


def test_a_fanout_above_the_degree_takes_all_neighbours_in_order(sampler_of):
    subgraph = sampler_of(STAR, fanouts=(50,)).sample([0], key=1)
    assert subgraph.node_ids.tolist() == list(range(11))


def test_isolated_and_childless_seeds_have_no_edges(sampler_of):
    subgraph = sampler_of(STAR, fanouts=(5, 5)).sample([11, 3], key=1)
    assert subgraph.node_ids.tolist() == [11, 3]
    assert subgraph.num_nodes_per_hop == (2, 0, 0)
    assert subgraph.indptr.tolist() == [0, 0, 0]


def test_no_seeds_give_an_empty_subgraph(sampler_of):
    subgraph = sampler_of(STAR, fanouts=(5, 5)).sample(np.empty(0, dtype=np.int64), key=1)
    assert subgraph.num_nodes_per_hop == (0, 0, 0)
    assert subgraph.num_edges_per_hop == (0, 0)
    assert len(subgraph.indices) == 0


def test_seeds_that_are_neighbours_of_each_other_appear_once(sampler_of):
    triangle = graph_of_edges([(0, 1), (1, 2), (2, 0)], num_nodes=3, directed=False)
    subgraph = sampler_of(triangle, fanouts=(2, 2)).sample([0, 1, 2], key=1)
    assert subgraph.num_nodes_per_hop == (3, 0, 0)
    assert subgraph.num_edges_per_hop == (6, 0)


def test_messages_flow_along_the_edges(sampler_of):
    chain = graph_of_edges([(0, 1), (1, 2)], num_nodes=3)
    sampler = sampler_of(chain, fanouts=(5, 5))
    assert sampler.sample([2], key=1).node_ids.tolist() == [2, 1, 0]
    assert sampler.sample([0], key=1).node_ids.tolist() == [0]


def test_a_node_draws_the_same_neighbours_whoever_else_is_in_the_batch(sampler_of):
    graph = clustered_graph(300, degree=20)
    sampler = sampler_of(graph, fanouts=(3,))
    together = set(edges_of(sampler.sample(np.arange(60), key=8)))
    apart = set(edges_of(sampler.sample(np.arange(30), key=8))) | set(
        edges_of(sampler.sample(np.arange(30, 60), key=8))
    )
    assert together == apart


def test_another_key_gives_another_sample(sampler_of):
    sampler = sampler_of(STAR, fanouts=(3,))
    assert len({tuple(sampler.sample([0], key=stream_key(key)).node_ids.tolist()) for key in range(20)}) > 10


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_samples_do_not_depend_on_the_thread_or_on_what_was_sampled_before(sampler_of, num_threads):
    graph = clustered_graph(400)
    batches = np.random.default_rng(0).permutation(400).reshape(20, 20)
    expected = [reference_sample(csc_of(graph), batch, fanouts=(3, 2), key=key) for key, batch in enumerate(batches)]

    def sample_some(keys: list[int]) -> dict[int, SampledSubgraph]:
        sampler = sampler_of(graph, fanouts=(3, 2))
        return {key: sampler.sample(batches[key], key=key) for key in keys}

    with concurrent.futures.ThreadPoolExecutor(num_threads) as threads:
        found = [*threads.map(sample_some, [list(range(first, 20, num_threads)) for first in range(num_threads)])]
    for samples in found:
        for key, subgraph in samples.items():
            assert_same(subgraph, expected[key])


def test_a_repeated_seed_is_refused_by_name_and_the_sampler_lives_on(sampler_of):
    sampler = sampler_of(STAR, fanouts=(3,))
    with pytest.raises(SeedsInvalidError, match=r"node 4 is given twice among 3 seeds \(again at position 2\)"):
        sampler.sample([4, 0, 4], key=1)
    assert_same(sampler.sample([4, 0], key=1), reference_sample(csc_of(STAR), [4, 0], fanouts=(3,), key=1))


@pytest.mark.parametrize("seed", [-1, 12, 2**32 + 3])
def test_a_seed_outside_the_graph_is_refused_by_name(sampler_of, seed):
    with pytest.raises(SeedsInvalidError, match=f"seed {seed} at position 1 is no node: the graph has nodes 0 to 11"):
        sampler_of(STAR, fanouts=(3,)).sample([0, seed], key=1)
