"""The samplers' contract in plain Python, node by node: slow, obvious, and equal in every sample, bit for bit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from workers.mqgnn.sampling.csc import Csc
from workers.mqgnn.sampling.hetero import EdgeType
from workers.mqgnn.sampling.layers import LayerOptions
from workers.mqgnn.sampling.neighbors import UNIFORM_NEIGHBORS, NeighborOptions
from workers.mqgnn.sampling.preference import Preference
from workers.mqgnn.sampling.subgraph import SampledSubgraph

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """SplitMix64's finaliser on Python integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def number(key: int, position: int) -> int:
    """The 64 bits at ``position`` of stream ``key``."""
    return mix(key + (position + 1) * _GOLDEN & _MASK)


def below(key: int, position: int, bound: int) -> int:
    """A number below ``bound``."""
    return (number(key, position) >> 32) * bound >> 32


def exponential(bits: int) -> float:
    """−log₂ of the odd integer of 53 bits that the top 52 bits name, over 2⁵³."""
    mantissa, exponent = math.frexp(float(bits >> 11 | 1))
    y = (1 - mantissa) / (1 + mantissa)
    series = 1 / 17
    for divisor in (15, 13, 11, 9, 7, 5, 3, 1):
        series = series * (y * y) + 1 / divisor
    return (53 - exponent) + 2 / math.log(2) * (y * series)


@dataclass
class Row:
    """What one node may choose from: its eligible edges, by place among its in-edges."""

    csc: Csc
    node: int
    places: list[int]

    def position(self, place: int) -> int:
        return int(self.csc.indptr[self.node]) + place

    def weight(self, place: int) -> float:
        return float(self.csc.weights[self.position(place)])


def floyd(row: Row, fanout: int, stream: int) -> list[int]:
    key, chosen = mix(stream ^ row.node), []
    for i in range(fanout):
        upper = len(row.places) - fanout + i
        pick = below(key, i, upper + 1)
        chosen.append(upper if pick in chosen else pick)
    return [row.places[pick] for pick in chosen]


def with_replacement(row: Row, fanout: int, stream: int) -> list[int]:
    key = mix(stream ^ row.node)
    return [row.places[below(key, i, len(row.places))] for i in range(fanout)]


def race_of_edges(row: Row, fanout: int, stream: int) -> list[int]:
    key = mix(stream ^ row.node)
    return sorted(row.places, key=lambda place: (exponential(number(key, place)) / row.weight(place), place))[:fanout]


def by_share(row: Row, fanout: int, stream: int) -> list[int]:
    key, sums, total = mix(stream ^ row.node), [], 0.0
    for place in row.places:
        total += row.weight(place)
        sums.append(total)
    targets = [(number(key, i) >> 11) * 2.0**-53 * total for i in range(fanout)]
    return [next((p for p, end in zip(row.places, sums, strict=True) if end > t), row.places[-1]) for t in targets]


def labor(row: Row, fanout: int, stream: int) -> list[int]:
    def own_number(place: int) -> int:
        return mix(stream ^ int(row.csc.indices[row.position(place)])) >> 32

    return [place for place in row.places if own_number(place) * len(row.places) < fanout * 2**32]


_CHOICES: dict[tuple[str, bool], Callable[[Row, int, int], list[int]]] = {
    ("uniform", False): floyd,
    ("uniform", True): with_replacement,
    ("weighted", False): race_of_edges,
    ("weighted", True): by_share,
    ("labor", False): labor,
}


def choose(csc: Csc, node: int, *, fanout: int, stream: int, limit: int | None, options: NeighborOptions) -> list[int]:
    """Positions of the edges chosen for ``node``."""
    row = Row(csc, node, places=[*range(int(csc.indptr[node + 1] - csc.indptr[node]))])
    if options.rule == "weighted":
        row.places = [place for place in row.places if row.weight(place) > 0]
    if limit is not None:
        row.places = [place for place in row.places if csc.times[row.position(place)] <= limit]
    everything = fanout < 0 or (len(row.places) <= fanout and not options.with_replacement)
    if not row.places or everything:
        return [row.position(place) for place in row.places]
    return [row.position(p) for p in _CHOICES[options.rule, options.with_replacement](row, fanout, stream)]


@dataclass
class Growth:
    """A subgraph while it grows; nodes are (tree, node) pairs."""

    nodes: list[tuple[int, int]]
    indptr: list[int] = field(default_factory=lambda: [0])
    indices: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    num_nodes: list[int] = field(default_factory=list)
    num_edges: list[int] = field(default_factory=list)

    def local(self, node: tuple[int, int]) -> int:
        if node not in self.nodes:
            self.nodes.append(node)
        return self.nodes.index(node)


def reference_sample(
    csc: Csc,
    seeds: Sequence[int],
    *,
    fanouts: Sequence[int],
    key: int,
    options: NeighborOptions = UNIFORM_NEIGHBORS,
    times: Sequence[int] | None = None,
) -> SampledSubgraph:
    """What ``NeighborSampler.sample`` must return."""
    roots = [int(seed) for seed in seeds]
    streams = [mix(int(key) ^ seed) if options.disjoint else int(key) for seed in roots]
    grown = Growth([(tree if options.disjoint else 0, seed) for tree, seed in enumerate(roots)])
    grown.num_nodes.append(len(roots))
    first = 0
    for fanout in fanouts:
        frontier, first, before = grown.nodes[first:], len(grown.nodes), len(grown.positions)
        for tree, node in frontier:
            limit = None if times is None else int(times[tree])
            for position in choose(csc, node, fanout=fanout, stream=streams[tree], limit=limit, options=options):
                grown.indices.append(grown.local((tree, int(csc.indices[position]))))
                grown.positions.append(position)
            grown.indptr.append(len(grown.indices))
        grown.num_nodes.append(len(grown.nodes) - first)
        grown.num_edges.append(len(grown.positions) - before)
    return _finish(csc, grown, options.edge_ids, trees=options.disjoint)


def prefer(csc: Csc, node: int, *, fanout: int, stream: int, preference: Preference) -> dict[int, float]:
    """Positions of the edges chosen for ``node`` by a preference, with one over the chance of each to be chosen."""
    row = Row(csc, node, places=[*range(int(csc.indptr[node + 1] - csc.indptr[node]))])
    if fanout < 0 or len(row.places) <= fanout:
        return dict.fromkeys(map(row.position, row.places), 1.0)
    is_hot = {place: bool(preference.preferred[csc.indices[row.position(place)]]) for place in row.places}
    hot, cold = ([place for place in row.places if is_hot[place] == kind] for kind in (True, False))
    expected = max(fanout * len(cold) / (preference.factor * len(hot) + len(cold)), fanout - len(hot))
    key = mix(stream ^ node)
    from_cold = int(expected) + ((number(key, 0) >> 11) * 2.0**-53 < expected - int(expected))
    chosen = {}
    for places, count, mean, key_of_kind in [
        (hot, fanout - from_cold, fanout - expected, mix(key ^ 1)),
        (cold, from_cold, expected, mix(key ^ 2)),
    ]:
        picks: list[int] = []
        for i in range(count):
            upper = len(places) - count + i
            pick = below(key_of_kind, i, upper + 1)
            picks.append(upper if pick in picks else pick)
        chosen |= {row.position(places[pick]): len(places) / mean for pick in picks}
    return chosen


def reference_preferring(
    csc: Csc, seeds: Sequence[int], *, fanouts: Sequence[int], key: int, preference: Preference
) -> SampledSubgraph:
    """What ``NeighborSampler.sample`` must return with a preference, edge weights up to rounding."""
    grown, weights, first = Growth([(0, int(seed)) for seed in seeds]), [], 0
    grown.num_nodes.append(len(grown.nodes))
    for fanout in fanouts:
        frontier, first, before = grown.nodes[first:], len(grown.nodes), len(grown.positions)
        for _, node in frontier:
            chosen = prefer(csc, node, fanout=fanout, stream=int(key), preference=preference)
            for position, weight in chosen.items():
                grown.indices.append(grown.local((0, int(csc.indices[position]))))
                grown.positions.append(position)
                weights.append(weight)
            grown.indptr.append(len(grown.indices))
        grown.num_nodes.append(len(grown.nodes) - first)
        grown.num_edges.append(len(grown.positions) - before)
    return replace(_finish(csc, grown, False, weights=weights), nested=True)


def _finish(
    csc: Csc, grown: Growth, edge_ids: bool, *, trees: bool = False, weights: list[float] | None = None
) -> SampledSubgraph:
    positions = np.array(grown.positions, dtype=csc.indices.dtype)
    return SampledSubgraph(
        node_ids=np.array([node for _, node in grown.nodes], dtype=csc.indices.dtype),
        indptr=np.array(grown.indptr, dtype=np.int32),
        indices=np.array(grown.indices, dtype=np.int32),
        num_nodes_per_hop=tuple(grown.num_nodes),
        num_edges_per_hop=tuple(grown.num_edges),
        edge_ids=csc.edge_numbers(positions) if edge_ids else None,
        trees=np.array([tree for tree, _ in grown.nodes], dtype=np.int32) if trees else None,
        edge_weights=None if weights is None else np.array(weights, dtype=np.float32),
        nested=weights is None,
    )


def importance(csc: Csc, targets: Sequence[int], *, flat: bool) -> dict[int, float]:
    """Candidates in order of first sight, with ‖P[targets, candidate]‖², or its root."""
    sums: dict[int, float] = {}
    for target in targets:
        begin, end = csc.indptr[target : target + 2].tolist()
        for source in csc.indices[begin:end].tolist():
            sums[source] = sums.get(source, 0.0) + 1 / (end - begin + 1)
    degree = np.diff(csc.indptr)
    squares = {node: total / int(degree[node] + 1) for node, total in sums.items()}
    return {node: math.sqrt(value) for node, value in squares.items()} if flat else squares


def estimates(shares: Sequence[float], num_candidates: int, *, debiased: bool) -> list[float]:
    """What each drawn node counts for, by the recursion over draws as it is written in the paper."""
    if not debiased:
        return [1 / (len(shares) * share) for share in shares]
    weights: list[float] = []
    for k, share in enumerate(shares):
        alpha = num_candidates / ((k + 1) * (num_candidates - k))
        weights = [weight * (1 - alpha) + alpha for weight in weights]
        weights.append(alpha * (1 - sum(shares[:k])) / share)
    return weights


def reference_layers(
    csc: Csc, seeds: Sequence[int], *, sizes: Sequence[int], streams: Sequence[int], options: LayerOptions
) -> SampledSubgraph:
    """What ``LayerSampler.sample`` must return, edge weights up to rounding; ``streams`` are those of the hops."""
    grown = Growth([(0, int(seed)) for seed in seeds], indptr=[])
    grown.num_nodes.append(len(grown.nodes))
    edge_weights: list[float] = []
    for size, stream in zip(sizes, streams, strict=True):
        targets, before = [node for _, node in grown.nodes], len(grown.positions)
        whole = options.importance == "fastgcn"
        candidates = importance(csc, range(csc.num_targets) if whole else targets, flat=options.flat)
        if size < 0 or size >= len(candidates):
            weight_of = dict.fromkeys(candidates, 1.0)
        else:
            places = {node: place for place, node in enumerate(candidates)}
            finish = {n: (exponential(mix(int(stream) ^ n)) / q, places[n]) for n, q in candidates.items()}
            drawn, total = sorted(candidates, key=finish.__getitem__)[:size], sum(candidates.values())
            shares = [candidates[node] / total for node in drawn]
            weight_of = dict(zip(drawn, estimates(shares, len(candidates), debiased=options.debiased), strict=True))
        grown.indptr.append(0)
        for target in targets:
            for position in range(csc.indptr[target], csc.indptr[target + 1]):
                source = int(csc.indices[position])
                if source in weight_of:
                    grown.indices.append(grown.local((0, source)))
                    grown.positions.append(position)
                    edge_weights.append(weight_of[source])
            grown.indptr.append(len(grown.positions) - before)
        grown.num_nodes.append(len(grown.nodes) - len(targets))
        grown.num_edges.append(len(grown.positions) - before)
    return _finish(csc, grown, options.edge_ids, weights=edge_weights)


def reference_hetero(
    edges: Mapping[EdgeType, Csc],
    seeds: Mapping[str, Sequence[int]],
    *,
    fanouts: Mapping[EdgeType, Sequence[int]],
    streams: Mapping[EdgeType, int],
    num_hops: int,
) -> tuple[dict[str, list[int]], dict[EdgeType, list[tuple[int, int, int]]]]:
    """(nodes of each type, (local source, local target, edge number) of each edge type), uniform sampling."""
    names = {name for kind in edges for name in (kind[0], kind[2])}
    nodes = {name: [int(seed) for seed in seeds.get(name, ())] for name in names}
    found: dict[EdgeType, list[tuple[int, int, int]]] = {kind: [] for kind in edges}
    first = dict.fromkeys(names, 0)
    for hop in range(num_hops):
        end = {name: len(met) for name, met in nodes.items()}
        for kind in sorted(edges):
            csc = edges[kind]
            for target in range(first[kind[2]], end[kind[2]]):
                chosen = choose(
                    csc,
                    nodes[kind[2]][target],
                    fanout=fanouts[kind][hop],
                    stream=streams[kind],
                    limit=None,
                    options=UNIFORM_NEIGHBORS,
                )
                for position in chosen:
                    source = int(csc.indices[position])
                    if source not in nodes[kind[0]]:
                        nodes[kind[0]].append(source)
                    edge = int(csc.edge_numbers(np.array([position]))[0])
                    found[kind].append((nodes[kind[0]].index(source), target, edge))
        first = end
    return nodes, found
