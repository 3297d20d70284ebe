"""Dealing graphs: complete, balanced by cost, and the same order whoever asks."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph
from workers.data.graph import TEST, TRAIN, VALIDATION
from workers.megagraph.data_parallel import GlobalStep, GraphDealer, count_targets, deal

COSTS = st.lists(st.integers(1, 100), max_size=7)


def dealer(*, batch_size: int = 3, seed: int = 0, num_micro_batches: int = 1) -> GraphDealer:
    return GraphDealer(odd_set(), batch_size=batch_size, seed=seed, num_micro_batches=num_micro_batches)


def graphs_of(step: GlobalStep) -> list[int]:
    return [graph for micro_batch in step.micro_batches for graph in micro_batch]


@given(costs=COSTS, num_hands=st.integers(1, 4))
def test_every_graph_is_dealt_to_exactly_one_hand(costs: list[int], num_hands: int) -> None:
    hands = deal(costs, num_hands=num_hands)
    assert len(hands) == num_hands
    assert sorted(itertools.chain(*hands)) == list(range(len(costs)))


@given(costs=COSTS, num_hands=st.integers(1, 3))
def test_the_dearest_hand_is_at_most_four_thirds_of_the_best_possible(costs: list[int], num_hands: int) -> None:
    def dearest(hands: list[list[int]]) -> int:
        return max((sum(costs[place] for place in hand) for hand in hands), default=0)

    best = min(
        dearest([[place for place, hand in enumerate(owner) if hand == wanted] for wanted in range(num_hands)])
        for owner in itertools.product(range(num_hands), repeat=len(costs))
    )
    assert dearest([list(hand) for hand in deal(costs, num_hands=num_hands)]) <= best * 4 / 3


@given(count=st.integers(0, 6), num_hands=st.integers(6, 8))
def test_with_hands_to_spare_no_hand_holds_two(count: int, num_hands: int) -> None:
    assert max(map(len, deal([5] * count, num_hands=num_hands))) <= 1


def test_an_epoch_holds_every_training_graph_once() -> None:
    shares = dealer().epoch(1)
    assert len(shares) == dealer().steps_per_epoch == 3
    assert sorted(itertools.chain(*map(graphs_of, shares))) == list(range(7))


def test_epochs_and_seeds_differ_in_order_and_repeat_themselves() -> None:
    orders = [dealer(seed=seed, batch_size=1).epoch(epoch) for seed, epoch in ((0, 1), (0, 2), (1, 1), (0, 1))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_micro_batches_hold_the_batch_and_replicas_hold_the_micro_batch() -> None:
    whole, cut = (dealer(batch_size=5, num_micro_batches=number).epoch(1) for number in (1, 2))
    for step, part in zip(whole, cut, strict=True):
        assert sorted(graphs_of(part)) == sorted(graphs_of(step))
        assert (part.num_targets, part.num_nodes) == (step.num_targets, step.num_nodes)
        for turn, graphs in enumerate(part.micro_batches):
            hands = dealer().hands(graphs, num_replicas=3, turn=turn)
            assert sorted(itertools.chain(*hands)) == sorted(graphs)


def test_replicas_take_turns_at_getting_one_graph_too_many() -> None:
    alike = GraphDealer(
        build_set([build_graph(4, [(0, 1)], seed=seed) for seed in range(6)]), batch_size=6, seed=0, num_micro_batches=2
    )
    (step,) = alike.epoch(1)
    sizes = [
        list(map(len, alike.hands(graphs, num_replicas=2, turn=turn))) for turn, graphs in enumerate(step.micro_batches)
    ]
    assert sizes == [[2, 1], [1, 2]]


def test_targets_are_labelled_training_nodes() -> None:
    assert [count_targets(graph) for graph in odd_set().graphs] == [10, 1, 7, 7, 5, 3, 3]


def test_graphs_without_training_nodes_are_scored_but_not_trained_on() -> None:
    splits = [np.full(3, code, dtype=np.int8) for code in (TRAIN, VALIDATION, TEST)]
    dataset = build_set([build_graph(3, [(0, 1)], seed=1, split=split) for split in splits])
    one = GraphDealer(dataset, batch_size=8, seed=0, num_micro_batches=1)
    assert [graphs_of(step) for step in one.epoch(1)] == [[0]]
    assert one.evaluation(num_replicas=1) == [(1,), (2,)]


def test_one_graph_is_trained_on_and_scored_by_one_replica_while_others_idle() -> None:
    dealt = GraphDealer(one_graph(), batch_size=8, seed=0, num_micro_batches=1)
    assert dealt.epoch(1)[0].micro_batches == ((0,),)
    assert dealt.evaluation(num_replicas=2) == [(0,)]
    assert dealt.hands((0,), num_replicas=2, turn=0) == ((0,), ())


def test_evaluation_gives_every_replica_one_graph_at_a_time() -> None:
    batches = dealer().evaluation(num_replicas=3)
    assert sorted(itertools.chain(*batches)) == sorted(itertools.chain(*dealer().evaluation(num_replicas=1)))
    for turn, graphs in enumerate(batches):
        assert max(map(len, dealer().hands(graphs, num_replicas=3, turn=turn))) == 1
