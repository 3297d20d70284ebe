"""Neighbours sampled by pyg-lib, where it is installed and asked for: the same subgraphs in form, other random numbers.

pyg-lib draws from torch's global generator, so what holds of our samplers (the same subgraph for any number of threads,
workers and replicas) does not hold of it; one line of the log says so. Where it is missing, or its function is not the
one that is called here, our own sampler takes its place, and a line says that.
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from workers.data.edges import indptr_of
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.memory import seed_error
from workers.mqgnn.sampling.neighbors import NeighborOptions, joined_offsets
from workers.mqgnn.sampling.numba_kernels import DUPLICATE, OUT_OF_RANGE
from workers.mqgnn.sampling.subgraph import SampledSubgraph

_log = logging.getLogger(__name__)

Sample = Callable[..., tuple[Any, ...]]  # pyg_lib.sampler.neighbor_sample


@cache
def find_pyg_lib() -> Sample | None:
    """pyg-lib's function, tried on two nodes; None, and one warning, where it cannot be used."""
    try:
        from pyg_lib.sampler import neighbor_sample

        tried = Csc(np.array([0, 1, 1]), np.array([1], dtype=np.int64), num_sources=2)
        found = PygLibSampler(tried, fanouts=(1,), options=NeighborOptions(), function=neighbor_sample).sample(
            np.array([0]), key=0
        )
        if (found.node_ids.tolist(), found.indptr.tolist()) != ([0, 1], [0, 1]):
            raise ValueError(f"of one edge it made {found}")
    except Exception as error:  # a missing module, a library of another torch, a function of another release
        _log.warning(
            "sampler_backend pyg_lib cannot be used here (%s: %s); graphmill's own sampler takes its place",
            type(error).__name__,
            " ".join(str(error).split())[:200],
        )
        return None
    _log.info(
        "pyg-lib samples with random numbers of its own: mini-batches may differ between runs and numbers of workers"
    )
    return neighbor_sample


class PygLibSampler:
    """Samples for one worker as ``NeighborSampler`` does; ``csc`` has int64 indices."""

    def __init__(self, csc: Csc, *, fanouts: Sequence[int], options: NeighborOptions, function: Sample) -> None:
        assert options.rule in ("uniform", "weighted")
        assert csc.indices.dtype == np.int64, "pyg-lib takes one type of index"
        self._csc, self._fanouts, self._options, self._function = csc, tuple(fanouts), options, function
        self._indptr, self._indices = torch.from_numpy(csc.indptr), torch.from_numpy(csc.indices)
        is_weighted = options.rule == "weighted" and csc.weights is not None
        self._weights = torch.from_numpy(csc.weights) if is_weighted else None

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """Sample around ``seeds`` [B]; ``key`` decides nothing. Raises ``SeedsInvalidError``."""
        seeds, options = np.asarray(seeds, dtype=np.int64), self._options
        self._check(seeds)
        sources, targets, nodes, edges, num_nodes, num_edges = self._function(
            self._indptr,
            self._indices,
            torch.from_numpy(seeds),
            list(self._fanouts),
            edge_weight=self._weights,
            csc=True,
            replace=options.with_replacement,
            directed=True,
            disjoint=options.disjoint,
            return_edge_id=True,
        )
        trees, node_ids = nodes.t().numpy() if options.disjoint else (None, nodes.numpy())
        local, num_last = sources.numpy().astype(np.int32), num_edges[-1] if num_edges else 0
        num_expanded = len(node_ids) - (num_nodes[-1] if self._fanouts else 0)
        short = not options.relabel_last_hop
        return SampledSubgraph(
            node_ids=np.ascontiguousarray(node_ids[:num_expanded] if short else node_ids),
            indptr=joined_offsets([indptr_of(targets.numpy(), num_targets=num_expanded)]),
            indices=local[: len(local) - num_last] if short else local,
            num_nodes_per_hop=(*num_nodes[:-1], 0) if short else tuple(num_nodes),
            num_edges_per_hop=tuple(num_edges),
            edge_ids=self._csc.edge_numbers(edges.numpy()) if options.edge_ids else None,
            trees=None if trees is None else trees.astype(np.int32)[: num_expanded if short else None],
            source_ids=self._csc.indices[edges.numpy()] if short else None,
        )

    def _check(self, seeds: np.ndarray) -> None:
        """pyg-lib reads whatever a wrong seed points to."""
        size = self._csc.num_targets
        wrong = np.flatnonzero((seeds < 0) | (seeds >= size))
        if len(wrong):
            raise seed_error(OUT_OF_RANGE, seeds, position=int(wrong[0]), num_nodes=size)
        if not self._options.disjoint and len(np.unique(seeds)) < len(seeds):
            _, first = np.unique(seeds, return_index=True)
            again = np.setdiff1d(np.arange(len(seeds)), first)
            raise seed_error(DUPLICATE, seeds, position=int(again[0]), num_nodes=size)
