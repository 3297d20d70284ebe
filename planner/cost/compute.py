"""Computing time of one rank: units of the model and the optimiser, from measured curves. All times in seconds."""

from collections.abc import Sequence

import numpy as np

from planner.fitting import UnitCurves, Work


def mean_work(graph_sizes: Sequence[int], *, num_graphs: float, cp_degree: int) -> Work:
    """The expected work of the fullest of ``cp_degree`` ranks on ``num_graphs`` graphs: ⌈N/cp⌉ rows against N each."""
    nodes = np.asarray(graph_sizes, dtype=np.float64)
    rows = np.ceil(nodes / cp_degree)
    return Work(
        num_visits=num_graphs * cp_degree,
        num_rows=num_graphs * float(rows.mean()),
        num_pairs=num_graphs * float((rows * nodes).mean()),
    )


def total_work(graph_sizes: Sequence[int], *, cp_degree: int) -> Work:
    """The rows of all graphs that lie on the fullest rank."""
    return mean_work(graph_sizes, num_graphs=len(graph_sizes), cp_degree=cp_degree)


def largest_work(
    graph_sizes: Sequence[int], *, graphs_per_step: int, num_replicas: int, num_micro_batches: int, cp_degree: int
) -> Work:
    """A bound on any micro-batch of any step: what memory has to hold.

    Graphs are dealt by cost (pairs), the dearest first, to micro-batches and then to replicas. Such a hand holds at
    most an even share and one graph more (Graham, Bounds on Multiprocessing Timing Anomalies, 1969); rows are bounded
    by filling it with the smallest graphs. The largest graphs may all come in one step.
    """
    if graphs_per_step == 1:
        return total_work((max(graph_sizes),), cp_degree=cp_degree)
    nodes = np.sort(np.asarray(graph_sizes, dtype=np.float64))[::-1]
    step = nodes[:graphs_per_step]
    all_pairs, most, fewest = float((step**2).sum()), float(nodes[0]), float(nodes[-1])
    pairs = all_pairs
    for num_hands in (num_micro_batches, num_replicas):
        pairs = pairs if num_hands == 1 else min(pairs, pairs / num_hands + most**2)
    rows = min(float(step.sum()), pairs / fewest) if pairs < all_pairs else float(step.sum())
    graphs = min(float(len(step)), rows / fewest)
    rounding = graphs * (cp_degree - 1) / cp_degree  # rows of a graph that do not divide evenly
    return Work(
        num_visits=graphs * cp_degree,
        num_rows=rows / cp_degree + rounding,
        num_pairs=pairs / cp_degree + rounding * most,
    )


def estimate_forward_s(curves: UnitCurves, work: Work) -> float:
    """One forward pass of one unit."""
    return curves.forward_s.at(work)


def estimate_backward_s(curves: UnitCurves, work: Work) -> float:
    """One backward pass of one unit whose activations are at hand."""
    return curves.backward_s.at(work)


def estimate_optimizer_s(curves: UnitCurves) -> float:
    """One optimiser step over all parameters of the rank; it depends on no graph."""
    return curves.forward_s.constant
