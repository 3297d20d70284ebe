"""Stochastic block model with Gaussian features: made here, and the best possible accuracy is known.

Every node belongs to one of four hidden communities. Two nodes of one community are joined with probability ``p_in``,
others with ``p_out``; a node's features are a unit Gaussian around its community's mean. The *label* is the community,
except that a tenth of the nodes of every community and part of the split carry another class, chosen uniformly.

Why 0.9 is the best accuracy. Which nodes are flipped is independent of edges, features and all other nodes' labels, so
given everything that a model may see, a test node's label is its community with probability 0.9 and each other class
with 1/30: no predictor beats 0.9 in expectation, and the one that names the community reaches exactly 0.9 of the test
nodes. Naming it is possible: ``confusion_bound`` bounds the error of the likelihood test that knows the others'
communities (Bhattacharyya, union over the rivals), and what is left of the way to 0.9 is below that bound.
"""

from dataclasses import dataclass

import numpy as np

from workers.data.build import build_dataset
from workers.data.edges import from_edges
from workers.data.features import DenseFeatures
from workers.data.graph import TEST, TRAIN, VALIDATION, Graph, GraphDataset
from workers.data.splits import stratified_split

NUM_COMMUNITIES = 4
NUM_FEATURES = 16
MEAN_DISTANCE = 2.0  # between the means of any two communities, in standard deviations
LABEL_NOISE = 0.1
SEED = 0


@dataclass(frozen=True)
class BlockModel:
    """Probability of an edge within a community and between two."""

    p_in: float
    p_out: float


ONE_GRAPH, ONE_GRAPH_NODES = BlockModel(p_in=0.06, p_out=0.004), 1000
# Small graphs need denser blocks: a community has only 5 to 15 nodes to be known by.
SMALL_GRAPHS, NUM_SMALL_GRAPHS, SMALL_GRAPH_NODES = BlockModel(p_in=0.8, p_out=0.05), 64, (20, 60)


def read_sbm(name: str) -> GraphDataset:
    """One graph of 1,000 nodes in four communities of 250, split 60/20/20."""
    generator = np.random.default_rng(SEED)
    communities = _communities(ONE_GRAPH_NODES)
    split = stratified_split(communities, seed=SEED)
    y = _flip_labels(communities, split=split, generator=generator)
    graph = _draw_graph(ONE_GRAPH, communities=communities, y=y, split=split, generator=generator)
    bound = confusion_bound(ONE_GRAPH, community_size=ONE_GRAPH_NODES // NUM_COMMUNITIES)
    return _dataset(name, graphs=(graph,), bound=bound)


def read_sbm_graphs(name: str) -> GraphDataset:
    """64 graphs of 20 to 60 nodes over the same features; each lies wholly in one part, 60/20/20 of the graphs."""
    generator = np.random.default_rng(SEED)
    low, high = SMALL_GRAPH_NODES
    sizes = generator.integers(low, high, size=NUM_SMALL_GRAPHS, endpoint=True)
    parts = _parts_of_graphs()
    communities = np.concatenate([_communities(size) for size in sizes])
    split = np.repeat(parts, sizes)
    y = _flip_labels(communities, split=split, generator=generator)
    ends = np.cumsum(sizes)[:-1]
    graphs = tuple(
        _draw_graph(SMALL_GRAPHS, communities=of_graph, y=labels, split=part, generator=generator)
        for of_graph, labels, part in zip(*(np.split(array, ends) for array in (communities, y, split)), strict=True)
    )
    bounds = [confusion_bound(SMALL_GRAPHS, community_size=int(size) // NUM_COMMUNITIES) for size in sizes]
    return _dataset(name, graphs=graphs, bound=float(np.average(bounds, weights=sizes)))


def confusion_bound(model: BlockModel, *, community_size: int) -> float:
    """Upper bound of P(a node's community is mistaken), given the communities of all others.

    The chance that a rival j looks likelier than the truth i is at most E_i[sqrt(P_j / P_i)], the Bhattacharyya
    coefficient BC of the two, and there are K - 1 rivals. BC of one edge or non-edge to a node of either community is
    sqrt(p q) + sqrt((1 - p)(1 - q)); there are ``2 * community_size - 1`` such nodes, all independent; of the features
    it is exp(-distance^2 / 8).
    """
    p, q = model.p_in, model.p_out
    of_one_pair = np.sqrt(p * q) + np.sqrt((1 - p) * (1 - q))
    of_features = np.exp(-(MEAN_DISTANCE**2) / 8)
    return float((NUM_COMMUNITIES - 1) * of_features * of_one_pair ** (2 * community_size - 1))


def community_means() -> np.ndarray:
    """Float64 [K, F]: the means, on one axis each, so every two are ``MEAN_DISTANCE`` apart; other axes are noise."""
    return np.eye(NUM_COMMUNITIES, NUM_FEATURES) * MEAN_DISTANCE / np.sqrt(2)


def _communities(num_nodes: int) -> np.ndarray:
    return np.arange(num_nodes) % NUM_COMMUNITIES


def _parts_of_graphs() -> np.ndarray:
    num_train, num_validation = round(0.6 * NUM_SMALL_GRAPHS), round(0.2 * NUM_SMALL_GRAPHS)
    counts = (num_train, num_validation, NUM_SMALL_GRAPHS - num_train - num_validation)
    return np.repeat(np.array([TRAIN, VALIDATION, TEST], dtype=np.int8), counts)


def _flip_labels(communities: np.ndarray, *, split: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Labels: the community, but another class for a tenth of each (community, part), to the nearest node."""
    y = communities.astype(np.int64)
    for community in range(NUM_COMMUNITIES):
        for part in (TRAIN, VALIDATION, TEST):
            members = np.flatnonzero((communities == community) & (split == part))
            flipped = generator.choice(members, size=round(LABEL_NOISE * len(members)), replace=False)
            y[flipped] = (community + generator.integers(1, NUM_COMMUNITIES, size=len(flipped))) % NUM_COMMUNITIES
    return y


def _draw_graph(
    model: BlockModel, *, communities: np.ndarray, y: np.ndarray, split: np.ndarray, generator: np.random.Generator
) -> Graph:
    sources, targets = np.triu_indices(len(communities), k=1)
    same = communities[sources] == communities[targets]
    joined = generator.random(len(sources)) < np.where(same, model.p_in, model.p_out)
    adjacency = from_edges(sources[joined], targets[joined], num_nodes=len(communities))
    noise = generator.standard_normal((len(communities), NUM_FEATURES))
    features = (community_means()[communities] + noise).astype(np.float32)
    return Graph(adjacency.indptr, adjacency.indices, features=DenseFeatures(features), y=y, split=split)


def _dataset(name: str, *, graphs: tuple[Graph, ...], bound: float) -> GraphDataset:
    best = 1.0 - LABEL_NOISE
    notes = (
        f"stochastic block model, {NUM_COMMUNITIES} communities, seed {SEED}",
        f"labels are the community, another class for {LABEL_NOISE:.0%}: no method beats {best} in expectation;"
        f" knowing the others' communities, a node's own is mistaken with probability at most {bound:.2g}",
    )
    return build_dataset(name, graphs=graphs, num_classes=NUM_COMMUNITIES, notes=notes, best_accuracy=best)
