"""On which nodes the actors lie that sample for a job, so that its ranks have nodes of their own. A pure decision."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.admission import Amount, Part, lay_out


@dataclass(frozen=True)
class Apart:
    """Ids of the nodes set aside for actors, and of all others. Both empty: there are too few nodes to tell apart."""

    for_actors: frozenset[str] = frozenset()
    for_ranks: frozenset[str] = frozenset()


def set_apart(free: Mapping[str, Amount], *, ranks: Part, actors: Part) -> Apart:
    """The fewest nodes that hold all ``actors`` while the others hold all ``ranks``, by what each node has ``free``.

    Those with the least room are taken first: Ray packs ranks into the roomiest, as the planner expects.
    """
    nodes = sorted(free, key=lambda node: (free[node].gpus, free[node].cpus, node))
    for count in range(1, len(nodes)):
        aside, others = nodes[:count], nodes[count:]
        if lay_out(actors.each, actors.count, [free[node] for node in aside]) is None:
            continue
        if lay_out(ranks.each, ranks.count, [free[node] for node in others]) is None:
            break  # with more nodes aside they have even less
        return Apart(for_actors=frozenset(aside), for_ranks=frozenset(others))
    return Apart()
