"""The typed sampler over one graph of all types: its subgraphs in the form of all others, with a relation per edge.

``HeteroSampler`` numbers nodes by type and edges by relation; here nodes of all types lie together, hop by hop, and the
in-edges of a node, relation by relation. So a mini-batch goes the way of any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from workers.data.edges import indptr_of, targets_of
from workers.data.graph import Graph
from workers.model_specs.sampled import Relation, TypeNames
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.hetero import HeteroSampler, HeteroSubgraph
from workers.mqgnn.sampling.memory import Kernels
from workers.mqgnn.sampling.neighbors import Rule, joined_offsets
from workers.mqgnn.sampling.subgraph import SampledSubgraph


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """The edges of a graph relation by relation, in numbers by type; made once, for all workers."""

    types: TypeNames
    edges: Mapping[Relation, Csc]
    nodes: Mapping[str, np.ndarray]  # int64 [n of the type]: which nodes are of it
    place: np.ndarray  # int64 [N]: of each node among those of its type
    type_of: np.ndarray  # uint8 [N]
    dtype: np.dtype  # of numbers of nodes


def cut_by_type(graph: Graph, *, types: TypeNames) -> TypedEdges:
    """``graph`` has the numbers of its edges' relations in ``edge_types`` (``sampled_graph``)."""
    assert graph.edge_types is not None, "relations were numbered before"
    assert graph.node_types is not None, "types of nodes were, too"
    nodes = {name: np.flatnonzero(graph.node_types == number) for number, name in enumerate(types.nodes)}
    place = np.empty(graph.num_nodes, dtype=np.int64)
    for of_type in nodes.values():
        place[of_type] = np.arange(len(of_type))
    ends = targets_of(graph.indptr)
    edges = {}
    for number, relation in enumerate(types.relations):
        kept = np.flatnonzero(graph.edge_types == number)
        kept = kept[np.argsort(place[ends[kept]], kind="stable")]
        edges[relation] = Csc(
            indptr=indptr_of(place[ends[kept]], num_targets=len(nodes[relation[2]])),
            indices=place[graph.indices[kept]].astype(graph.indices.dtype),
            num_sources=len(nodes[relation[0]]),
            weights=None if graph.edge_weights is None else graph.edge_weights[kept],
        )
    return TypedEdges(types, edges, nodes, place, type_of=graph.node_types, dtype=graph.indices.dtype)


class TypedSampler:
    """Samples for one worker; two threads need two samplers."""

    def __init__(
        self,
        edges: TypedEdges,
        *,
        fanouts: Sequence[int],
        rule: Rule = "uniform",
        with_replacement: bool = False,
        kernels: Kernels = numba_kernels,
    ) -> None:
        """``fanouts`` hold for each relation."""
        self._edges = edges
        self._sampler = HeteroSampler(
            edges.edges,
            num_nodes={name: len(nodes) for name, nodes in edges.nodes.items()},
            fanouts=dict.fromkeys(edges.edges, tuple(fanouts)),
            rule=rule,
            with_replacement=with_replacement,
            kernels=kernels,
        )

    def sample(self, seeds: np.ndarray, *, key: int | np.uint64) -> SampledSubgraph:
        """Sample around ``seeds`` [B], all of one type. Raises ``SeedsInvalidError``."""
        seeds = np.asarray(seeds, dtype=np.int64)
        assert len(np.unique(self._edges.type_of[seeds])) <= 1, "seeds are of the type that is predicted"
        given = {self._edges.types.nodes[self._edges.type_of[seeds[0]]]: self._edges.place[seeds]} if len(seeds) else {}
        return self._flatten(self._sampler.sample(given, key=key))

    def _flatten(self, found: HeteroSubgraph) -> SampledSubgraph:
        per_hop = np.array([found.num_nodes_per_hop[name] for name in self._edges.types.nodes])  # [types, hops + 1]
        begins = np.cumsum(per_hop.T.reshape(-1)) - per_hop.T.reshape(-1)
        begins = begins.reshape(per_hop.T.shape)  # [hops + 1, types]: where each run of nodes lies
        node_ids, number_of = np.empty(per_hop.sum(), dtype=self._edges.dtype), {}
        for place, name in enumerate(self._edges.types.nodes):
            within = np.concatenate([np.arange(count) for count in per_hop[place]])
            number_of[name] = np.repeat(begins[:, place], per_hop[place]) + within
            node_ids[number_of[name]] = self._edges.nodes[name][found.node_ids[name]]
        sources, targets, kinds, weights = [], [], [], []
        for number, relation in enumerate(self._edges.types.relations):
            sources.append(number_of[relation[0]][found.indices[relation]])
            targets.append(number_of[relation[2]][targets_of(found.indptr[relation])])
            kinds.append(np.full(len(sources[-1]), number, dtype=np.uint8))
            weights.append(self._weights(relation, found))
        rows = np.concatenate(targets)
        order = np.argsort(rows, kind="stable")  # relations in their order within a row
        num_nodes = tuple(per_hop.sum(axis=0).tolist())
        num_expanded = sum(num_nodes[:-1])
        indptr = joined_offsets([indptr_of(rows, num_targets=num_expanded)])
        ends = [0, *accumulate(num_nodes[:-1])]
        return SampledSubgraph(
            node_ids=node_ids,
            indptr=indptr,
            indices=np.concatenate(sources)[order].astype(np.int32),
            num_nodes_per_hop=num_nodes,
            num_edges_per_hop=tuple(np.diff(indptr[ends]).tolist()),
            relations=np.concatenate(kinds)[order],
            edge_weights=np.concatenate(weights)[order],
        )

    def _weights(self, relation: Relation, found: HeteroSubgraph) -> np.ndarray:
        """float32 [edges of ``relation``]: a target's neighbours under it over those that were sampled."""
        indptr, counts = self._edges.edges[relation].indptr, np.diff(found.indptr[relation])
        expanded = found.node_ids[relation[2]][: len(counts)]
        degrees = indptr[expanded + 1] - indptr[expanded]
        return np.repeat(degrees / np.maximum(counts, 1), counts).astype(np.float32)
