import numpy as np
import pytest

from workers.mqgnn.seed_order import SeedOrder


def parts_of_epoch(order: SeedOrder, epoch: int) -> list[list[np.ndarray]]:
    """parts[batch][rank]."""
    return [
        [order.part(epoch=epoch, batch=batch, rank=rank) for rank in range(order.world_size)]
        for batch in range(order.steps_per_epoch)
    ]


@pytest.mark.parametrize(
    ("num_train", "batch_size", "world_size"), [(4097, 1024, 4), (4096, 1024, 4), (3, 1024, 4), (10, 3, 2), (7, 1, 3)]
)
def test_every_seed_is_taken_exactly_once_per_epoch_by_one_replica(num_train, batch_size, world_size):
    train_nodes = np.arange(num_train) * 3 + 1
    order = SeedOrder(train_nodes, batch_size, seed=0, world_size=world_size)
    parts = parts_of_epoch(order, epoch=1)
    assert sorted(np.concatenate([part for batch in parts for part in batch]).tolist()) == train_nodes.tolist()
    for batch, of_ranks in enumerate(parts):
        sizes = [len(part) for part in of_ranks]
        assert sum(sizes) == order.num_seeds(batch) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_a_short_last_batch_leaves_some_replicas_an_empty_part():
    order = SeedOrder(np.arange(4097), 1024, seed=0, world_size=4)
    assert order.steps_per_epoch == 5
    assert order.num_seeds(4) == 1
    assert sorted(len(order.part(epoch=1, batch=4, rank=rank)) for rank in range(4)) == [0, 0, 0, 1]


def test_replicas_together_take_what_one_process_takes():
    alone, shared = (SeedOrder(np.arange(50), 8, seed=3, world_size=size) for size in (1, 4))
    for batch in range(alone.steps_per_epoch):
        together = np.concatenate([shared.part(epoch=2, batch=batch, rank=rank) for rank in range(4)])
        np.testing.assert_array_equal(together, alone.part(epoch=2, batch=batch, rank=0))


def test_epochs_and_seeds_give_different_orders_and_the_same_pair_the_same():
    orders = {
        (seed, epoch): tuple(SeedOrder(np.arange(100), 100, seed=seed).part(epoch=epoch, batch=0, rank=0).tolist())
        for seed in range(3)
        for epoch in range(1, 4)
    }
    assert len(set(orders.values())) == 9
    again = SeedOrder(np.arange(100), 100, seed=1).part(epoch=2, batch=0, rank=0)
    assert tuple(again.tolist()) == orders[1, 2]


def test_every_position_is_equally_likely_for_a_seed():
    first = [int(SeedOrder(np.arange(10), 1, seed=0).part(epoch=epoch, batch=0, rank=0)[0]) for epoch in range(1, 2001)]
    counts = np.bincount(first, minlength=10)
    assert ((counts - 200) ** 2 / 200).sum() < 50  # chi-square, 9 degrees of freedom: p < 1e-7
