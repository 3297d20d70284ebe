"""Data parallelism over graphs: who trains on which graph in which step. Pure decisions, the same on every rank.

A step's global batch of graphs is dealt to the replicas by cost, and a replica's hand to its micro-batches. Losses are
divided by the number of targets of the *global* batch, so the sum over all ranks and micro-batches equals what one
process would compute over the same batch, however unevenly the graphs were dealt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.data.graph import TEST, TRAIN, VALIDATION, Graph, GraphDataset


@dataclass(frozen=True)
class StepShare:
    """One replica's part of one optimiser step. The two counts are of the whole global batch."""

    micro_batches: tuple[tuple[int, ...], ...]  # positions of graphs in the data set, some may be empty
    num_targets: int
    num_nodes: int


class GraphDealer:
    """Deals the graphs of ``dataset`` to ``num_replicas``, of which this one is ``replica``."""

    def __init__(
        self,
        dataset: GraphDataset,
        *,
        batch_size: int,
        seed: int,
        replica: int,
        num_replicas: int,
        num_micro_batches: int,
    ) -> None:
        self._graphs = dataset.graphs
        self._targets = [count_targets(graph) for graph in dataset.graphs]
        self._training = [index for index, count in enumerate(self._targets) if count]
        self._batch_size = batch_size
        self._seed = seed
        self._replica = replica
        self._num_replicas = num_replicas
        self._num_micro_batches = num_micro_batches

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every training graph comes once; the last batch may be smaller."""
        return -(-len(self._training) // self._batch_size)

    def epoch(self, epoch: int) -> list[StepShare]:
        """This replica's shares of epoch ``epoch``; the order of the graphs follows from the seed and the epoch."""
        order = np.random.default_rng((self._seed, epoch)).permutation(self._training).tolist()
        return [
            self._share(order[start : start + self._batch_size]) for start in range(0, len(order), self._batch_size)
        ]

    def evaluation(self) -> list[tuple[int, ...]]:
        """This replica's graphs that hold validation or test nodes, one batch for each."""
        scored = [index for index, graph in enumerate(self._graphs) if np.isin(graph.split, (VALIDATION, TEST)).any()]
        return [(index,) for index in self._deal(scored, self._num_replicas)[self._replica]]

    def _share(self, graphs: Sequence[int]) -> StepShare:
        hand = self._deal(graphs, self._num_replicas)[self._replica]
        return StepShare(
            micro_batches=self._deal(hand, self._num_micro_batches),
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
    """Nodes that the training loss runs over: in the training split, with a label."""
    return int(((graph.split == TRAIN) & (graph.y >= 0)).sum())
