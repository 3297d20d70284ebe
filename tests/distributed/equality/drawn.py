"""Random graphs of every awkward kind, and random ways to train a random model on them, for laws that hold of all."""

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from planner.plan import Partition
from tests.distributed.equality.cases import Case
from tests.distributed.equality.layouts import LAYOUTS, UNEVEN, UP_TO_FOUR, Cell, cells
from tests.distributed.equality.models import MODELS, as_wholes, typed
from tests.distributed.odd_graphs import Edges, build_graph, build_set, random_edges, with_self_loops
from workers.data.graph import Graph

_PARTITIONS = [
    Partition(order=order, balance=balance)
    for order in ("natural", "metis", "greedy", "random")
    for balance in ("rows", "edges")
]
_CELLS = sorted(cells([*UP_TO_FOUR, *UNEVEN]), key=lambda cell: (LAYOUTS[cell.layout].world_size, cell.name))
LARGEST = 300


def _two_parts(num_nodes: int, seed: int) -> Edges:
    """Two parts that do not touch."""
    half = num_nodes // 2
    left, right = random_edges(max(half, 1), num_nodes, seed=seed), random_edges(num_nodes - half, num_nodes, seed=seed)
    return [*left, *((half + a, half + b) for a, b in right)]


KINDS: dict[str, Callable[[int, int], Edges]] = {
    "isolated nodes": lambda num_nodes, seed: [],
    "star": lambda num_nodes, seed: [(0, leaf) for leaf in range(1, num_nodes)],
    "path": lambda num_nodes, seed: [(node, node + 1) for node in range(num_nodes - 1)],
    "mostly isolated": lambda num_nodes, seed: random_edges(num_nodes, max(1, num_nodes // 4), seed=seed),
    "doubled edges": lambda num_nodes, seed: [*random_edges(num_nodes, num_nodes, seed=seed)] * 2,
    "dense": lambda num_nodes, seed: random_edges(num_nodes, 5 * num_nodes, seed=seed),
    "two parts": _two_parts,
}


def odd_graph(kind: str, num_nodes: int, seed: int, num_loops: int) -> Graph:
    """A graph of this kind, with self loops at some nodes as a store written elsewhere may hold them."""
    graph = build_graph(num_nodes, KINDS[kind](num_nodes, seed), seed=seed)
    return with_self_loops(graph, np.random.default_rng(seed).permutation(num_nodes)[:num_loops].tolist())


def graphs() -> st.SearchStrategy[Graph]:
    """Mostly small ones: one node, fewer nodes than ranks, not divisible by them; some of hundreds."""
    sizes = st.one_of(st.integers(1, 5), st.integers(6, 23), st.integers(24, LARGEST))
    return st.builds(odd_graph, st.sampled_from([*KINDS]), sizes, st.integers(0, 999), st.integers(0, 3))


@st.composite
def drawn_cases(draw: st.DrawFn) -> Case:
    """Random graphs in one batch under a random cell of the tables, cut in any order."""
    cell: Cell = draw(st.sampled_from(_CELLS))
    found = draw(st.lists(graphs(), min_size=1, max_size=1 if cell.graphs == "one" else 5))
    dataset = typed(build_set(found))
    if MODELS[cell.model].level == "graph":
        dataset = as_wholes(dataset, validated=())
    return cell.case(dataset=dataset, partition=draw(st.sampled_from(_PARTITIONS)))
