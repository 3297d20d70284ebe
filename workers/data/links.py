"""A data set whose links are predicted: some edges are hidden from the graph that is trained on, and asked for.

An edge and its reverse, where there is one, are one link and lie in one part. Links of the training part stay in the
graph, those of the others are taken out of it, whatever is trained or scored (as with PyG's ``RandomLinkSplit``, but
that the links of validation are not shown to the test either).
"""

from dataclasses import replace

import numpy as np

from workers.data.edges import from_edges, to_edges
from workers.data.graph import EDGE_COLUMNS, TEST, TRAIN, VALIDATION, GraphDataset, Links
from workers.errors import DatasetInvalidError
from workers.spec import LinkSpec


def hide_links(dataset: GraphDataset, spec: LinkSpec) -> GraphDataset:
    """``dataset`` with links to predict instead of labels; its ``num_classes`` is the size of a node's embedding.

    Raises ``DatasetInvalidError`` for a set of many graphs, one with edge types, and one with too few edges.
    """
    if len(dataset.graphs) != 1:
        raise DatasetInvalidError(f"links are predicted in one graph; {dataset.name} has {len(dataset.graphs)}")
    graph = dataset.graphs[0]
    sources, targets, is_one_way = _links_of(*to_edges(graph.indptr, graph.indices), num_nodes=graph.num_nodes)
    split = _split(len(sources), spec)
    if not (split == TRAIN).any():
        raise DatasetInvalidError(f"{dataset.name} has {len(sources)} links; none is left to train on")
    shown = split == TRAIN
    both = shown & ~is_one_way
    ends = (np.concatenate([sources[shown], targets[both]]), np.concatenate([targets[shown], sources[both]]))
    adjacency = from_edges(*ends, num_nodes=graph.num_nodes, directed=True)
    shown_graph = replace(graph, indptr=adjacency.indptr, indices=adjacency.indices, **dict.fromkeys(EDGE_COLUMNS))
    return replace(
        dataset,
        graphs=(shown_graph,),
        num_classes=spec.embedding_size,
        task="links",
        num_edge_types=0,
        class_names=(),
        fingerprint=f"{dataset.fingerprint}-links-{spec.num_val}-{spec.num_test}-{spec.seed}",
        links=Links(
            sources=sources,
            targets=targets,
            split=split,
            num_negatives=spec.neg_sampling_ratio,
            num_eval_negatives=spec.eval_negatives,
            seed=spec.seed,
        ),
    )


def _links_of(sources: np.ndarray, targets: np.ndarray, *, num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(source, target, whether it goes one way alone) of every link, in the order of its lower and higher end."""
    forward = np.sort(sources * num_nodes + targets)
    is_upward = sources < targets
    keys = np.unique(np.where(is_upward, sources * num_nodes + targets, targets * num_nodes + sources))
    low, high = np.divmod(keys, max(1, num_nodes))
    goes_up, goes_down = (_contains(forward, key) for key in (low * num_nodes + high, high * num_nodes + low))
    return np.where(goes_up, low, high), np.where(goes_up, high, low), ~(goes_up & goes_down)


def _contains(ordered: np.ndarray, keys: np.ndarray) -> np.ndarray:
    places = np.searchsorted(ordered, keys)
    return ordered[np.minimum(places, len(ordered) - 1)] == keys if len(ordered) else np.zeros(len(keys), dtype=bool)


def _split(num_links: int, spec: LinkSpec) -> np.ndarray:
    split = np.full(num_links, TRAIN, dtype=np.int8)
    order = np.random.default_rng(spec.seed).permutation(num_links)
    num_val, num_test = int(spec.num_val * num_links), int(spec.num_test * num_links)
    split[order[:num_val]] = VALIDATION
    split[order[num_val : num_val + num_test]] = TEST
    return split
