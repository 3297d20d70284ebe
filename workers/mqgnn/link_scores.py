"""How links are scored: the product of both ends' embeddings, and each true link's rank among false ones.

The rank of a link is 1 + the false ones above it, a tie counting half. What travels between replicas are counts of
ranks, so MRR and Hits@K are the same bits for any number of replicas:

    MRR      mean of 1 / rank
    Hits@K   share of links of a rank of K at most

ROC-AUC and average precision are those of every link and its first false one. The false links of an evaluation are
named by the seed of the links alone: all models, and all evaluations of one, meet the same.
"""

import numpy as np
import torch
from torch import Tensor

from workers.comm.axis import Axis
from workers.data.edges import to_edges
from workers.data.graph import SPLIT_NAMES, TRAIN, GraphDataset
from workers.mqgnn.counter_rng import Stream, stream_key
from workers.mqgnn.evaluation import CHUNK_BYTES
from workers.mqgnn.sampling.csc import Csc, csc_of_edges
from workers.mqgnn.sampling.links import LinkSeeder
from workers.training.metrics import Rankings

_HITS = (1, 3, 10, 50)


def score_links(embeddings: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    """[n, 1 + false ones]: products of the rows ``sources`` [n] and ``targets`` [n, 1 + …] of ``embeddings`` [N, H]."""
    return (embeddings[sources].unsqueeze(1) * embeddings[targets]).sum(dim=2)


class LinkBoard:
    """Scores a model by its embeddings; the false links are drawn once."""

    def __init__(self, dataset: GraphDataset, *, axis: Axis) -> None:
        assert dataset.links is not None
        links, self._axis = dataset.links, axis
        scored = np.flatnonzero(links.split != TRAIN)
        own = scored[len(scored) * axis.index // axis.size : len(scored) * (axis.index + 1) // axis.size]
        sources, targets = links.sources[own], links.targets[own]
        seeder = LinkSeeder(all_edges(dataset), num_negatives=links.num_eval_negatives)
        false = seeder.false_targets(sources, targets, key=stream_key(Stream.FALSE_LINKS, links.seed))
        self._sources, self._split = torch.from_numpy(sources), torch.from_numpy(links.split[own])
        self._targets = torch.from_numpy(np.column_stack([targets, false]))

    def scores(self, embeddings: Tensor) -> dict[str, float]:
        """``{split}_{metric}`` of validation and test, the same on all replicas. ``embeddings`` [N, H]. Collective."""
        num_false = self._targets.shape[1] - 1
        # by part and twice the rank: a tie counts half
        counts = torch.zeros(len(SPLIT_NAMES), 2 * num_false + 3, dtype=torch.int64)
        rankings = Rankings(1, task="multilabel", device=torch.device("cpu"))
        step = max(1, CHUNK_BYTES // ((num_false + 1) * embeddings[:1].nbytes))
        for first in range(0, len(self._sources), step):
            rows = slice(first, first + step)
            found = score_links(embeddings, self._sources[rows], self._targets[rows]).cpu()
            true, false, split = found[:, :1], found[:, 1:], self._split[rows].long()
            doubled = 2 + 2 * (false > true).sum(dim=1) + (false == true).sum(dim=1)
            doubled = torch.where(true.squeeze(1).isnan(), 2 * num_false + 2, doubled)  # no number is above none
            counts.view(-1).index_add_(0, split * counts.shape[1] + doubled, torch.ones_like(doubled))
            answers = torch.tensor([1.0, 0.0]).repeat(len(found), 1)
            pairs = found[:, :2].reshape(-1, 1)
            rankings.add(pairs, y=answers.reshape(-1, 1), split=split.repeat_interleave(2).to(torch.int8))
        self._axis.sum_in_place(counts)
        return _of_ranks(counts) | rankings.scores(self._axis)


def _of_ranks(counts: Tensor) -> dict[str, float]:
    """MRR and Hits@K from the number of links of each doubled rank, int64 [parts, ranks]."""
    found: dict[str, float] = {}
    ranks = torch.arange(counts.shape[1], dtype=torch.float64) / 2
    for name, numbers in zip(SPLIT_NAMES, counts, strict=True):
        if not (total := int(numbers.sum())):
            continue
        found[f"{name}_mrr"] = float((numbers[2:] / ranks[2:]).sum()) / total
        found |= {f"{name}_hits_at_{most}": int(numbers[ranks <= most].sum()) / total for most in _HITS}
    return found


def all_edges(dataset: GraphDataset) -> Csc:
    """Those that are shown and those that are hidden, so that no true link is taken for a false one."""
    assert dataset.links is not None
    graph, links = dataset.graphs[0], dataset.links
    sources, targets = to_edges(graph.indptr, graph.indices)
    hidden = links.split != TRAIN
    ends = (links.sources[hidden], links.targets[hidden])
    return csc_of_edges(
        np.concatenate([sources, *ends]), np.concatenate([targets, *reversed(ends)]), num_nodes=graph.num_nodes
    )
