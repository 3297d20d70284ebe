"""Node-wise sampling where nodes and edges have types: one CSC per edge type, numbers of their own per node type.

At every hop each edge type, in order of name, expands the newest nodes of its target type; a node is thereby expanded
once per edge type. Random numbers depend on the stream key, the edge type's place in that order, and the node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workers.mqgnn.counter_rng import stream_key
from workers.mqgnn.sampling import numba_kernels
from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.memory import NO_TIMES, RULES, EdgeChooser, Kernels, Numbering, Streams
from workers.mqgnn.sampling.neighbors import Rule, joined_offsets

EdgeType = tuple[str, str, str]  # source type, relation, target type


@dataclass(frozen=True, eq=False)
class HeteroSubgraph:
    """What ``SampledSubgraph`` (nested) is, per node type and per edge type; seeds first within their type.

    Rows of an edge type are the nodes of its target type, its indices are numbers of its source type.
    """

    node_ids: Mapping[str, np.ndarray]  # [n of the type]
    indptr: Mapping[EdgeType, np.ndarray]  # int32 [nodes of the target type before the last hop + 1]
    indices: Mapping[EdgeType, np.ndarray]  # int32 [e of the type]
    edge_ids: Mapping[EdgeType, np.ndarray]
    num_nodes_per_hop: Mapping[str, tuple[int, ...]]  # hops + 1 entries
    num_edges_per_hop: Mapping[EdgeType, tuple[int, ...]]  # hops entries


class HeteroSampler:
    """Samples for one worker; two threads need two samplers."""

    def __init__(
        self,
        edges: Mapping[EdgeType, Csc],
        *,
        num_nodes: Mapping[str, int],
        fanouts: Mapping[EdgeType, Sequence[int]],
        rule: Rule = "uniform",
        with_replacement: bool = False,
        kernels: Kernels = numba_kernels,
    ) -> None:
        """``fanouts`` has as many hops for every edge type (0: the type rests at that hop)."""
        assert len({len(hops) for hops in fanouts.values()}) == 1, "as many fanouts for every edge type"
        self._num_hops = len(next(iter(fanouts.values())))
        assert set(fanouts) == set(edges), "fanouts for every edge type"
        for kind, csc in edges.items():
            assert (csc.num_sources, csc.num_targets) == (num_nodes[kind[0]], num_nodes[kind[2]]), kind
        self._fanouts, self._types = dict(fanouts), sorted(edges)
        self._choosers = {
            kind: EdgeChooser(csc, rule=RULES[rule], with_replacement=with_replacement, kernels=kernels)
            for kind, csc in edges.items()
        }
        self._numberings = {name: Numbering(size, kernels=kernels) for name, size in num_nodes.items()}

    def sample(self, seeds: Mapping[str, np.ndarray], *, key: int | np.uint64) -> HeteroSubgraph:
        """Sample around ``seeds`` per node type; a type may be left out. Raises ``SeedsInvalidError``."""
        nodes: dict[str, list[np.ndarray]] = {}
        for name, numbering in self._numberings.items():
            given = np.asarray(seeds.get(name, ()), dtype=np.int64)
            numbering.begin(given)
            nodes[name] = [given]
        streams = {
            kind: Streams(np.array([stream_key(int(key), number)]), limits=NO_TIMES)
            for number, kind in enumerate(self._types)
        }
        offsets, local, positions = ({kind: [] for kind in self._types} for _ in range(3))
        for hop in range(self._num_hops):
            known = {name: sum(map(len, parts)) for name, parts in nodes.items()}
            newest = {name: parts[-1] for name, parts in nodes.items()}
            fresh: dict[str, list[np.ndarray]] = {name: [] for name in nodes}
            for kind in self._types:
                source, _, target = kind
                chooser = self._choosers[kind]
                rows = newest[target].astype(chooser.csc.indices.dtype)
                begins, chosen = chooser.choose(rows, fanout=self._fanouts[kind][hop], streams=streams[kind])
                numbers, met = self._numberings[source].relabel(chosen, chooser.csc.indices, num_known=known[source])
                known[source] += len(met)
                fresh[source].append(met.astype(np.int64))
                offsets[kind].append(begins)
                local[kind].append(numbers)
                positions[kind].append(chosen)
            for name, met in fresh.items():
                nodes[name].append(np.concatenate([np.empty(0, dtype=np.int64), *met]))
        return HeteroSubgraph(
            node_ids={name: np.concatenate(parts) for name, parts in nodes.items()},
            indptr={kind: joined_offsets(parts) for kind, parts in offsets.items()},
            indices={kind: np.concatenate(parts) for kind, parts in local.items()},
            edge_ids={k: self._choosers[k].csc.edge_numbers(np.concatenate(p)) for k, p in positions.items()},
            num_nodes_per_hop={name: tuple(map(len, parts)) for name, parts in nodes.items()},
            num_edges_per_hop={kind: tuple(map(len, parts)) for kind, parts in positions.items()},
        )
