"""Samplers by the names that job specs use, on the best form of the inner loops that is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, get_args

import numpy as np

from workers.model_specs.sampled import Backend, SamplerName
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.layers import LayerOptions, LayerSampler
from workers.mqgnn.sampling.native_kernels import sampler_kernels
from workers.mqgnn.sampling.neighbors import NeighborOptions, NeighborSampler
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.sampling.pyg_backend import PygLibSampler, find_pyg_lib
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.mqgnn.sampling.typed import TypedEdges, TypedSampler


class Sampler(Protocol):
    """What the sample stage asks for."""

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """The subgraph around ``seeds`` that ``key`` names."""


@dataclass(frozen=True, eq=False)
class SamplerOfTimes:
    """Samples around every seed what there is at its time."""

    sampler: NeighborSampler  # disjoint
    node_times: np.ndarray  # int64 [N]

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """The subgraphs of ``seeds``, no edge later than the seed's own time."""
        return self.sampler.sample(seeds, key=key, times=self.node_times[seeds])


def build_sampler(
    csc: Csc,
    *,
    name: SamplerName,
    fanouts: Sequence[int],
    replace: bool = False,
    disjoint: bool = False,
    node_times: np.ndarray | None = None,
    relabel_last_hop: bool = True,
    backend: Backend = "own",
    preference: Preference | None = None,
) -> Sampler:
    """The sampler called ``name``; ``fanouts`` are neighbours of a node, or (fastgcn, ladies) nodes of a hop.

    With ``node_times`` [N], no edge is later than the time of its seed, and subgraphs are disjoint. Without
    ``relabel_last_hop``, its nodes have no local numbers: ``SampledSubgraph.source_ids`` names them.
    Backend ``pyg_lib`` is ours where pyg-lib is not to be had. A ``preference`` is for uniform sampling without
    replacement.
    """
    assert name in get_args(SamplerName)
    kernels = sampler_kernels()
    rule, *extras = name.split("+")
    if rule in ("fastgcn", "ladies"):
        options = LayerOptions(
            importance=rule, flat="f" in extras, debiased="d" in extras, relabel_last_hop=relabel_last_hop
        )
        return LayerSampler(csc, sizes=fanouts, options=options, kernels=kernels)
    neighbors = NeighborOptions(
        rule=rule,
        with_replacement=replace,
        disjoint=disjoint or node_times is not None,
        relabel_last_hop=relabel_last_hop,
    )
    function = find_pyg_lib() if backend == "pyg_lib" else None
    if function is not None:
        return PygLibSampler(csc, fanouts=fanouts, options=neighbors, function=function)
    sampler = NeighborSampler(csc, fanouts=fanouts, options=neighbors, preference=preference, kernels=kernels)
    return sampler if node_times is None else SamplerOfTimes(sampler, node_times)


def build_typed_sampler(
    edges: TypedEdges, *, name: SamplerName, fanouts: Sequence[int], replace: bool = False
) -> Sampler:
    """The sampler of a graph whose relations are told apart: ``fanouts`` for each of them."""
    assert name in ("uniform", "weighted")
    return TypedSampler(edges, fanouts=fanouts, rule=name, with_replacement=replace, kernels=sampler_kernels())
