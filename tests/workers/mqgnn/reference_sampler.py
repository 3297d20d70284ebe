"""The sampler's contract in plain numpy and Python, node by node: slow, obvious, and equal in every sample."""

from collections.abc import Sequence

import numpy as np

from workers.data.graph import Graph
from workers.mqgnn.sampler import SampledSubgraph

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def choose(neighbors: Sequence[int], *, fanout: int, key: int, node: int) -> list[int]:
    """Floyd's selection of ``fanout`` of ``neighbors``; all of them, in order, when there are no more."""
    degree = len(neighbors)
    if fanout < 0 or degree <= fanout:
        return list(neighbors)
    stream, chosen = mix(key ^ node), []
    for i in range(fanout):
        upper = degree - fanout + i
        pick = (mix(stream + (i + 1) * _GOLDEN & _MASK) >> 32) * (upper + 1) >> 32
        chosen.append(upper if pick in chosen else pick)
    return [neighbors[position] for position in chosen]


def reference_sample(graph: Graph, seeds: Sequence[int], *, fanouts: Sequence[int], key: int) -> SampledSubgraph:
    """What ``NeighborSampler.sample`` must return."""
    nodes = [int(seed) for seed in seeds]
    local = {node: number for number, node in enumerate(nodes)}
    indptr, indices, num_nodes, num_edges, first = [0], [], [len(nodes)], [], 0
    for fanout in fanouts:
        frontier, first, before = nodes[first:], len(nodes), len(indices)
        for node in frontier:
            neighbors = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
            for neighbor in choose(neighbors, fanout=fanout, key=int(key), node=node):
                if neighbor not in local:
                    local[neighbor] = len(nodes)
                    nodes.append(neighbor)
                indices.append(local[neighbor])
            indptr.append(len(indices))
        num_nodes.append(len(nodes) - first)
        num_edges.append(len(indices) - before)
    return SampledSubgraph(
        node_ids=np.array(nodes, dtype=graph.indices.dtype),
        indptr=np.array(indptr, dtype=np.int32),
        indices=np.array(indices, dtype=np.int32),
        num_nodes_per_hop=tuple(num_nodes),
        num_edges_per_hop=tuple(num_edges),
    )
