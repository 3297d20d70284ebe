import numpy as np
import pytest

from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.sampling.odd_edges import random_csc
from tests.workers.mqgnn.sampling.reference import reference_hetero
from workers.errors import SeedsInvalidError
from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling.csc import Csc, csc_of
from workers.mqgnn.sampling.hetero import HeteroSampler
from workers.mqgnn.sampling.links import LinkSeeder
from workers.mqgnn.sampling.neighbors import NeighborSampler

CITES, WRITES, WRITTEN = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")


def typed_edges() -> dict[tuple[str, str, str], Csc]:
    """60 papers and 25 authors."""
    rng = np.random.default_rng(4)

    def between(num_sources: int, num_targets: int, num_edges: int) -> Csc:
        targets = np.sort(rng.integers(num_targets, size=num_edges))
        indptr = np.searchsorted(targets, np.arange(num_targets + 1))
        indices = rng.integers(num_sources, size=num_edges).astype(np.int32)
        return Csc(indptr, indices, num_sources, edge_ids=rng.permutation(num_edges).astype(np.int32))

    return {WRITES: between(25, 60, 150), CITES: between(60, 60, 300), WRITTEN: between(60, 25, 150)}


FANOUTS = {CITES: (4, 2), WRITES: (2, -1), WRITTEN: (3, 0)}
NUM_NODES = {"paper": 60, "author": 25}


@pytest.mark.parametrize("seeds", [{"paper": [3, 50, 7]}, {"author": [1], "paper": [2]}, {}])
def test_typed_samples_equal_those_of_the_reference(seeds, kernels):
    edges = typed_edges()
    sampler = HeteroSampler(edges, num_nodes=NUM_NODES, fanouts=FANOUTS, kernels=kernels)
    for key in range(5):
        found = sampler.sample(seeds, key=key)
        streams = {kind: int(stream_key(key, number)) for number, kind in enumerate(sorted(edges))}
        nodes, expected = reference_hetero(edges, seeds, fanouts=FANOUTS, streams=streams, num_hops=2)
        for name, met in nodes.items():
            assert found.node_ids[name].tolist() == met
            assert sum(found.num_nodes_per_hop[name]) == len(met)
        for kind, triples in expected.items():
            targets = np.repeat(np.arange(len(found.indptr[kind]) - 1), np.diff(found.indptr[kind]))
            columns = (found.indices[kind].tolist(), targets.tolist(), found.edge_ids[kind].tolist())
            assert [*zip(*columns, strict=True)] == triples


def test_one_type_of_everything_is_sampled_as_without_types(kernels):
    csc = random_csc()
    kind = ("node", "to", "node")
    typed = HeteroSampler({kind: csc}, num_nodes={"node": 120}, fanouts={kind: (3, 2)}, kernels=kernels)
    found = typed.sample({"node": np.arange(10)}, key=5)
    plain = NeighborSampler(csc, fanouts=(3, 2), kernels=kernels).sample(np.arange(10), key=stream_key(5, 0))
    np.testing.assert_array_equal(found.node_ids["node"], plain.node_ids)
    np.testing.assert_array_equal(found.indptr[kind], plain.indptr)
    np.testing.assert_array_equal(found.indices[kind], plain.indices)


def test_a_seed_that_is_no_node_of_its_type_is_named(kernels):
    sampler = HeteroSampler(typed_edges(), num_nodes=NUM_NODES, fanouts=FANOUTS, kernels=kernels)
    with pytest.raises(SeedsInvalidError, match="seed 25 at position 1 is no node"):
        sampler.sample({"author": [3, 25]}, key=1)


def test_links_name_their_nodes_once_and_true_targets_first():
    csc = csc_of(clustered_graph(50))
    sources, targets = np.array([4, 7, 4]), np.array([7, 4, 9])
    links = LinkSeeder(csc, num_negatives=3).seeds(sources, targets, key=1)
    assert len(set(links.nodes.tolist())) == len(links.nodes)
    assert links.nodes[links.sources].tolist() == sources.tolist()
    assert links.nodes[links.targets[:, 0]].tolist() == targets.tolist()
    assert links.targets.shape == (3, 4)


def test_false_targets_are_no_neighbours_and_uniform_among_the_others():
    csc = csc_of(clustered_graph(30, degree=8))
    seeder, sources = LinkSeeder(csc, num_negatives=200), np.arange(30)
    links = seeder.seeds(sources, (sources + 1) % 30, key=2)
    false = links.nodes[links.targets[:, 1:]]
    counts = np.zeros((30, 30))
    np.add.at(counts, (np.repeat(sources, 200), false.ravel()), 1)
    reached = np.zeros((30, 30), dtype=bool)
    reached[csc.indices, np.repeat(sources, np.diff(csc.indptr))] = True
    assert counts[reached].sum() == 0
    expected = np.where(reached, 0, 200 / (~reached).sum(axis=1, keepdims=True))
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected) + 1).all()


def test_false_targets_of_a_pair_do_not_depend_on_the_others():
    seeder = LinkSeeder(csc_of(clustered_graph(50)), num_negatives=2)
    together = seeder.seeds([1, 2, 3], [5, 6, 7], key=9)
    alone = seeder.seeds([3], [7], key=9)
    assert together.nodes[together.targets[2]].tolist() == alone.nodes[alone.targets[0]].tolist()
