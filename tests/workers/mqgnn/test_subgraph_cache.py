"""Subgraphs that are used again: what is trained depends on the rule alone, never on what the cache held."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from planner.caching import CacheRule
from tests.workers.mqgnn.graphs import clustered_graph
from tests.workers.mqgnn.runs import Settings, train_by_hand
from workers.mqgnn.sampling.subgraph import SampledSubgraph
from workers.mqgnn.seed_order import BatchTask, SeedOrder
from workers.mqgnn.subgraph_cache import SubgraphCache

GRAPH = clustered_graph(300)
RULE = CacheRule(reuse=2, reuse_growth=1.5)


def subgraph(number: int, *, size: int = 10) -> SampledSubgraph:
    numbers = np.full(size, number, dtype=np.int32)
    return SampledSubgraph(numbers, numbers[:0], numbers[:0], num_nodes_per_hop=(size,), num_edges_per_hop=())


class Asked:
    """A cache, and how often it had something sampled."""

    def __init__(self, *, max_bytes: int) -> None:
        self.cache, self.sampled = SubgraphCache(max_bytes=max_bytes), []

    def get(self, *, epoch: int, sampled_in: int, batch: int, seeds: tuple[int, ...] = (1, 2)) -> int:
        def sample() -> SampledSubgraph:
            self.sampled.append((sampled_in, batch))
            return subgraph(batch)

        kept = self.cache.get(
            epoch=epoch, sampled_in=sampled_in, batch=batch, seeds=np.array(seeds, dtype=np.int64), sample=sample
        )
        return int(kept.node_ids[0])


def test_what_fits_is_sampled_once_and_the_rest_again():
    asked = Asked(max_bytes=2 * (16 + 40))
    for epoch in (1, 2, 3):
        assert [asked.get(epoch=epoch, sampled_in=1, batch=batch) for batch in range(3)] == [0, 1, 2]
    assert asked.sampled == [(1, 0), (1, 1), (1, 2), (1, 2), (1, 2)]
    assert asked.cache.nbytes == 2 * (16 + 40)
    figures = asked.cache.figures()
    assert (figures["cache_subgraph_hits"], figures["cache_subgraph_misses"]) == (4, 5)
    assert figures["cache_staleness"] == pytest.approx((0 + 1 + 2) / 3)


def test_a_new_period_drops_all_of_the_one_before():
    asked = Asked(max_bytes=1000)
    asked.get(epoch=1, sampled_in=1, batch=0)
    asked.get(epoch=3, sampled_in=3, batch=1)
    assert asked.cache.nbytes == 16 + 40
    asked.get(epoch=2, sampled_in=1, batch=0)  # a worker that is late is served, and keeps nothing
    assert asked.cache.nbytes == 16 + 40
    assert asked.sampled == [(1, 0), (3, 1), (1, 0)]


def test_other_seeds_of_the_same_batch_are_another_subgraph():
    asked = Asked(max_bytes=1000)
    asked.get(epoch=1, sampled_in=1, batch=0, seeds=(1, 2))
    asked.get(epoch=2, sampled_in=1, batch=0, seeds=(1, 2, 3))
    asked.get(epoch=3, sampled_in=1, batch=0, seeds=(1, 2, 3))
    assert asked.sampled == [(1, 0), (1, 0)]
    assert asked.cache.nbytes == 24 + 40


def test_workers_share_one_cache():
    asked = Asked(max_bytes=10_000)
    threads = [
        threading.Thread(target=lambda: [asked.get(epoch=1, sampled_in=1, batch=batch) for batch in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked.cache.nbytes == 50 * (16 + 40)
    figures = asked.cache.figures()
    assert figures["cache_subgraph_hits"] + figures["cache_subgraph_misses"] == 200


def test_epochs_of_a_period_take_the_same_seeds_in_the_same_batches():
    order = SeedOrder(np.arange(100), 32, seed=3, reuse=RULE.sampled_in)
    parts = {epoch: order.part(epoch=epoch, batch=1, rank=0).tolist() for epoch in range(1, 7)}
    assert parts[1] == parts[2] != parts[3] == parts[4] == parts[5] != parts[6]
    for epoch in range(1, 7):
        taken = [order.part(epoch=epoch, batch=batch, rank=0) for batch in range(order.steps_per_epoch)]
        assert sorted(np.concatenate(taken)) == [*range(100)]


def reused(settings: Settings, *, max_bytes: int) -> tuple[dict[str, torch.Tensor], list[float], SubgraphCache]:
    cache = SubgraphCache(max_bytes=max_bytes)
    weights, losses = train_by_hand(GRAPH, replace(settings, reuse=RULE.sampled_in), subgraphs=cache)
    return weights, losses, cache


@pytest.mark.parametrize("in_place", [False, True])
def test_training_is_the_same_for_every_budget_and_number_of_workers(in_place):
    settings = Settings(epochs=4, batch_size=64, dropout=0.5, dtype=torch.float32, in_place=in_place)
    weights, losses, cache = reused(settings, max_bytes=0)
    assert cache.figures()["cache_subgraph_hits"] == 0
    threads = replace(settings, pipelined=True, num_sampling_workers=3)
    for again, max_bytes in ((settings, 10**9), (settings, 30_000), (threads, 30_000)):
        found, found_losses, cache = reused(again, max_bytes=max_bytes)
        assert found_losses == losses
        assert all(torch.equal(found[name], weights[name]) for name in weights)
        assert cache.nbytes <= max_bytes
        assert cache.figures()["cache_subgraph_hits"] > 0
    assert losses != train_by_hand(GRAPH, settings)[1]  # reuse itself is another training


def test_without_reuse_nothing_changes():
    settings = Settings(epochs=2, batch_size=64, dropout=0.5, dtype=torch.float32)
    off = CacheRule.model_validate("off")
    assert train_by_hand(GRAPH, replace(settings, reuse=off.sampled_in))[1] == train_by_hand(GRAPH, settings)[1]
    order = SeedOrder(np.arange(10), 4, seed=0)
    assert [order.sampled_in(task.epoch) for task in order.tasks(0, 6)] == [1, 1, 1, 2, 2, 2]
    assert next(order.tasks(3, 4)) == BatchTask(epoch=2, batch=0)
