import numpy as np
import pytest

from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from workers.data.build import build_dataset
from workers.data.edges import to_edges
from workers.data.graph import TEST, TRAIN, VALIDATION, Graph, GraphDataset
from workers.data.links import hide_links
from workers.errors import DatasetInvalidError
from workers.spec import LinkSpec

SPEC = LinkSpec(num_val=0.1, num_test=0.2, embedding_size=5)


def dataset_of(graph: Graph) -> GraphDataset:
    return build_dataset("made up", graphs=(graph,), num_classes=int(graph.y.max()) + 1)


def pairs(sources: np.ndarray, targets: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(sources.tolist(), targets.tolist(), strict=True))


def test_every_edge_is_one_link_with_its_reverse_and_hidden_ones_are_gone_both_ways():
    graph = clustered_graph(200)
    whole = pairs(*to_edges(graph.indptr, graph.indices))
    found = hide_links(dataset_of(graph), SPEC)
    links = found.links
    assert len(links.sources) == graph.num_edges // 2
    assert pairs(links.sources, links.targets) | pairs(links.targets, links.sources) == whole
    shown = links.split == TRAIN
    kept = pairs(links.sources[shown], links.targets[shown])
    assert pairs(*to_edges(found.graphs[0].indptr, found.graphs[0].indices)) == kept | {(t, s) for s, t in kept}
    for part, share in ((VALIDATION, 0.1), (TEST, 0.2)):
        assert (links.split == part).sum() == int(share * len(links.sources))


def test_an_edge_of_one_way_is_a_link_of_that_way():
    graph = graph_of_edges([(3, 1), (0, 2), (2, 0), (1, 0)], num_nodes=4)
    links = hide_links(dataset_of(graph), LinkSpec(num_val=0, num_test=0)).links
    assert pairs(links.sources, links.targets) == {(3, 1), (0, 2), (1, 0)}


def test_a_data_set_of_links_gives_each_node_an_embedding_and_has_a_name_of_its_own():
    dataset = dataset_of(clustered_graph(100))
    one, other = (hide_links(dataset, SPEC.model_copy(update={"seed": seed})) for seed in (0, 1))
    assert (one.task, one.num_classes) == ("links", 5)
    assert len({dataset.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert not np.array_equal(one.links.split, other.links.split)
    assert np.array_equal(one.links.split, hide_links(dataset, SPEC).links.split)


def test_what_has_no_links_to_train_on_is_refused():
    with pytest.raises(DatasetInvalidError, match="made up has 0 links; none is left to train on"):
        hide_links(dataset_of(graph_of_edges([], num_nodes=3)), SPEC)
    graph = clustered_graph(50)
    many = GraphDataset(name="many", graphs=(graph, graph), num_features=8, num_classes=3, fingerprint="")
    with pytest.raises(DatasetInvalidError, match="links are predicted in one graph; many has 2"):
        hide_links(many, SPEC)
    with pytest.raises(ValueError, match="leave no link to train on"):
        LinkSpec(num_val=0.5, num_test=0.5)
