"""Data parallelism over graphs: who trains on which graph in which step. Pure decisions, the same on every rank.

A step's global batch of graphs is dealt to micro-batches by cost, and a micro-batch to the replicas of a stage. Stages
of different degrees deal the same micro-batch each in its own way, and all ranks know all hands. Losses are divided by
the number of targets of the *global* batch, so the sum over all ranks and micro-batches equals what one process would
compute over the same batch, however unevenly the graphs were dealt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.data.graph import TEST, TRAIN, VALIDATION, Graph, GraphDataset, has_label


@dataclass(frozen=True)
class GlobalStep:
    """One optimiser step over all ranks: the graphs of every micro-batch, some may be empty, and counts of them all."""

    micro_batches: tuple[tuple[int, ...], ...]  # positions of graphs in the data set
    num_targets: int
    num_nodes: int


class GraphDealer:
    """Deals the graphs of ``dataset`` to steps, micro-batches and replicas."""

    def __init__(self, dataset: GraphDataset, *, batch_size: int, seed: int, num_micro_batches: int) -> None:
        self._graphs = dataset.graphs
        self._targets = [count_targets(graph) for graph in dataset.graphs]
        self._training = [index for index, count in enumerate(self._targets) if count]
        self._batch_size = batch_size
        self._seed = seed
        self._num_micro_batches = num_micro_batches

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every training graph comes once; the last batch may be smaller."""
        return -(-len(self._training) // self._batch_size)

    def epoch(self, epoch: int) -> list[GlobalStep]:
        """The steps of epoch ``epoch``; the order of the graphs follows from the seed and the epoch."""
        order = np.random.default_rng((self._seed, epoch)).permutation(self._training).tolist()
        return [self._step(order[start : start + self._batch_size]) for start in range(0, len(order), self._batch_size)]

    def evaluation(self, *, num_replicas: int) -> list[tuple[int, ...]]:
        """The graphs that hold validation or test nodes, in batches of one for each replica, like sizes together."""
        scored = [index for index, graph in enumerate(self._graphs) if np.isin(graph.split, (VALIDATION, TEST)).any()]
        return self._in_turns(scored, num_replicas)

    def everything(self, *, num_replicas: int) -> list[tuple[int, ...]]:
        """All graphs, in batches as for ``evaluation``."""
        return self._in_turns(list(range(len(self._graphs))), num_replicas)

    def _in_turns(self, scored: list[int], num_replicas: int) -> list[tuple[int, ...]]:
        scored.sort(key=lambda index: -self._graphs[index].num_nodes)
        return [tuple(scored[start : start + num_replicas]) for start in range(0, len(scored), num_replicas)]

    def hands(self, graphs: Sequence[int], *, num_replicas: int, turn: int) -> tuple[tuple[int, ...], ...]:
        """The graphs of one micro-batch by replica. ``turn``, its number, says who is first to get one too many."""
        hands = self._deal(graphs, num_replicas)
        return tuple(hands[(replica - turn) % num_replicas] for replica in range(num_replicas))

    def _step(self, graphs: Sequence[int]) -> GlobalStep:
        return GlobalStep(
            micro_batches=self._deal(graphs, self._num_micro_batches),
            num_targets=sum(self._targets[index] for index in graphs),
            num_nodes=sum(self._graphs[index].num_nodes for index in graphs),
        )

    def _deal(self, graphs: Sequence[int], num_hands: int) -> tuple[tuple[int, ...], ...]:
        costs = [self._graphs[index].num_nodes ** 2 for index in graphs]  # every pair of a graph's nodes is scored
        return tuple(tuple(graphs[place] for place in hand) for hand in deal(costs, num_hands=num_hands))


def deal(costs: Sequence[int], *, num_hands: int) -> tuple[tuple[int, ...], ...]:
    """Positions of ``costs`` in ``num_hands`` hands of about equal cost: the dearest first, each to the cheapest hand.

    At most 4/3 of the best possible dearest hand (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969); ties go
    to the lower position and the lower hand. Hands keep their positions in ascending order.
    """
    hands: list[list[int]] = [[] for _ in range(num_hands)]
    loads = [0] * num_hands
    for place in sorted(range(len(costs)), key=lambda place: (-costs[place], place)):
        cheapest = min(range(num_hands), key=lambda hand: (loads[hand], hand))
        hands[cheapest].append(place)
        loads[cheapest] += costs[place]
    return tuple(tuple(sorted(hand)) for hand in hands)


def count_targets(graph: Graph) -> int:
    """Rows that the training loss runs over: in the training split, with a label."""
    return int(((graph.split == TRAIN) & has_label(graph.y)).sum())
