"""Samplers by the names that job specs use, on the best form of the inner loops that is installed."""

from collections.abc import Sequence
from typing import Protocol, get_args

import numpy as np

from workers.model_specs.sampled import SamplerName
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.layers import LayerOptions, LayerSampler
from workers.mqgnn.sampling.native_kernels import sampler_kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.sampling.subgraph import SampledSubgraph


class Sampler(Protocol):
    """What the sample stage asks for."""

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """The subgraph around ``seeds`` that ``key`` names."""


def build_sampler(
    csc: Csc,
    *,
    name: SamplerName,
    fanouts: Sequence[int],
    replace: bool = False,
    relabel_last_hop: bool = True,
    preference: Preference | None = None,
) -> Sampler:
    """The sampler called ``name``; ``fanouts`` are neighbours of a node, or (fastgcn, ladies) nodes of a hop.

    Without ``relabel_last_hop``, its nodes have no local numbers: ``SampledSubgraph.source_ids`` names them.
    A ``preference`` is for uniform sampling without replacement.
    """
    assert name in get_args(SamplerName)
    kernels = sampler_kernels()
    rule, *extras = name.split("+")
    if rule in ("fastgcn", "ladies"):
        options = LayerOptions(
            importance=rule, flat="f" in extras, debiased="d" in extras, relabel_last_hop=relabel_last_hop
        )
        return LayerSampler(csc, sizes=fanouts, options=options, kernels=kernels)
    neighbors = NeighborOptions(rule=rule, with_replacement=replace, relabel_last_hop=relabel_last_hop)
    return NeighborSampler(csc, fanouts=fanouts, options=neighbors, preference=preference, kernels=kernels)
