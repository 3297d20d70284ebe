import dataclasses

import numpy as np
import pytest

from workers.data.datasets import load_dataset
from workers.data.graph import TEST, TRAIN, VALIDATION
from workers.data.readers.sbm import (
    LABEL_NOISE,
    NUM_COMMUNITIES,
    ONE_GRAPH,
    BlockModel,
    community_means,
    confusion_bound,
)
from workers.spec import DatasetSpec


def test_karate_trains_on_one_member_of_each_community(bare_paths):
    dataset = load_dataset(DatasetSpec(name="karate"), paths=bare_paths)
    (graph,) = dataset.graphs
    assert (graph.num_nodes, graph.num_edges, dataset.num_classes) == (34, 156, 4)
    assert sorted(graph.y[graph.split == TRAIN]) == [0, 1, 2, 3]
    assert abs(int((graph.split == VALIDATION).sum()) - int((graph.split == TEST).sum())) <= 4
    assert (graph.split >= 0).all()


def test_digits_are_joined_mostly_to_their_own_kind(bare_paths):
    dataset = load_dataset(DatasetSpec(name="digits-knn"), paths=bare_paths)
    (graph,) = dataset.graphs
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    assert (graph.num_nodes, dataset.num_features, dataset.num_classes) == (1797, 64, 10)
    assert np.diff(graph.indptr).min() >= 8
    assert (graph.y[targets] == graph.y[graph.indices]).mean() > 0.95
    assert graph.features.gather(np.arange(1797)).max() == 1.0


@pytest.mark.parametrize("name", ["karate", "digits-knn", "sbm", "sbm-graphs"])
def test_a_built_in_set_is_the_same_every_time(name, bare_paths, tmp_path):
    elsewhere = dataclasses.replace(bare_paths, cache=tmp_path / "elsewhere")
    one, other = (load_dataset(DatasetSpec(name=name), paths=paths) for paths in (bare_paths, elsewhere))
    assert one.fingerprint == other.fingerprint


def log_likelihoods(graph, communities: np.ndarray) -> np.ndarray:
    """[N, K] of each node's edges and features under each community, given the communities of all others."""
    one_hot = np.eye(NUM_COMMUNITIES)[communities]
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    joined = np.zeros((graph.num_nodes, NUM_COMMUNITIES))
    np.add.at(joined, targets, one_hot[graph.indices])
    apart = one_hot.sum(axis=0) - one_hot - joined
    p = np.where(np.eye(NUM_COMMUNITIES, dtype=bool), ONE_GRAPH.p_in, ONE_GRAPH.p_out)
    features = graph.features.gather(np.arange(graph.num_nodes)).astype(np.float64)
    offsets = features[:, None, :] - community_means()[None, :, :]
    return joined @ np.log(p) + apart @ np.log1p(-p) - (offsets**2).sum(axis=2) / 2


def test_the_best_possible_predictor_of_sbm_reaches_the_recorded_accuracy_and_not_more(bare_paths):
    dataset = load_dataset(DatasetSpec(name="sbm"), paths=bare_paths)
    (graph,) = dataset.graphs
    communities = np.arange(graph.num_nodes) % NUM_COMMUNITIES
    predicted = log_likelihoods(graph, communities).argmax(axis=1)
    assert (predicted != communities).mean() <= 0.002
    accuracy = (predicted == graph.y)[graph.split == TEST].mean()
    assert accuracy == pytest.approx(dataset.best_accuracy, abs=0.002)
    assert dataset.best_accuracy == 1 - LABEL_NOISE


def test_features_alone_do_not_solve_sbm(bare_paths):
    (graph,) = load_dataset(DatasetSpec(name="sbm"), paths=bare_paths).graphs
    features = graph.features.gather(np.arange(graph.num_nodes))
    nearest = ((features[:, None, :] - community_means()) ** 2).sum(axis=2).argmin(axis=1)
    assert 0.5 < (nearest == graph.y)[graph.split == TEST].mean() < 0.75


@pytest.mark.parametrize("part", [TRAIN, VALIDATION, TEST])
def test_a_tenth_of_the_labels_of_each_part_is_another_class(part, bare_paths):
    (graph,) = load_dataset(DatasetSpec(name="sbm"), paths=bare_paths).graphs
    communities = np.arange(graph.num_nodes) % NUM_COMMUNITIES
    assert (graph.y != communities)[graph.split == part].mean() == pytest.approx(LABEL_NOISE)


def test_more_nodes_or_more_contrast_make_communities_easier_to_tell():
    bounds = [confusion_bound(ONE_GRAPH, community_size=size) for size in (50, 100, 250)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 1e-3
    flatter = BlockModel(p_in=ONE_GRAPH.p_in / 2, p_out=ONE_GRAPH.p_out)
    assert confusion_bound(flatter, community_size=250) > bounds[-1]


def test_small_graphs_vary_in_size_and_lie_wholly_in_one_part(bare_paths):
    dataset = load_dataset(DatasetSpec(name="sbm-graphs"), paths=bare_paths)
    sizes = [graph.num_nodes for graph in dataset.graphs]
    parts = [set(graph.split.tolist()) for graph in dataset.graphs]
    assert len(dataset.graphs) == 64
    assert 20 <= min(sizes) < max(sizes) <= 60
    assert all(len(part) == 1 for part in parts)
    assert [sum(part == {number} for part in parts) for number in (TRAIN, VALIDATION, TEST)] == [38, 13, 13]
    assert all(graph.indices.max() < graph.num_nodes for graph in dataset.graphs)
