"""A script's Trainer on several ranks against the same in one process."""

import pytest
import torch
from torch.nn import functional
from torch_geometric.nn import GCNConv

from tests.workers.mqgnn.own.modules import MODULES, WIDTH_IN, WIDTH_OUT, Sized, pyg_data
from workers.mqgnn import Trainer
from workers.spec import LinkSpec


def train_replica(
    rank: int, world_size: int, name: str, links: LinkSpec | None = None
) -> tuple[list[float], torch.Tensor, dict[str, float]]:
    torch.manual_seed(rank)  # they begin with other weights: the first one's count
    model = MODULES[name][0]().double()
    loss = functional.cross_entropy if links is None else None
    trainer = Trainer(model, pyg_data(), fanouts=(3, 3), batch_size=50, loss=loss, links=links)
    reports = trainer.fit(2)
    return [report.loss for report in reports], trainer.predict(), trainer.evaluate()


@pytest.mark.parametrize("name", ["gcn", "residuals"])
def test_replicas_equal_one_process_over_the_same_global_batches(pool, name):
    losses, outputs, scores = train_replica(0, 1, name)
    for found_losses, found, found_scores in pool.run(train_replica, name, world_size=3):
        assert found_losses == pytest.approx(losses, rel=1e-9)
        torch.testing.assert_close(found, outputs, rtol=0, atol=1e-9)
        assert found_scores == scores


def test_replicas_that_learn_links_equal_one_process_and_score_alike_bit_for_bit(pool):
    links = LinkSpec(eval_negatives=30)
    losses, embeddings, scores = train_replica(0, 1, "sage", links)
    for found_losses, found, found_scores in pool.run(train_replica, "sage", links, world_size=3):
        assert found_losses == pytest.approx(losses, rel=1e-9)
        torch.testing.assert_close(found, embeddings, rtol=0, atol=1e-9)
        assert found_scores == scores


def learn_rows(rank: int, world_size: int) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    torch.manual_seed(rank)  # other rows, too
    model = Sized(GCNConv, WIDTH_IN + 4, WIDTH_OUT).double()
    settings = {"fanouts": (3, 3), "batch_size": 50, "loss": functional.cross_entropy}
    trainer = Trainer(model, pyg_data(), node_embedding_size=4, **settings)
    reports = [*trainer.fit(1), *trainer.fit(1)]
    return [report.loss for report in reports], trainer.predict(), model.node_table.weight.clone()


def test_rows_that_replicas_learn_for_nodes_are_those_of_one_process(pool):
    losses, outputs, rows = learn_rows(0, 1)
    for found_losses, found, found_rows in pool.run(learn_rows, world_size=3):
        assert found_losses == pytest.approx(losses, rel=1e-9)
        torch.testing.assert_close(found, outputs, rtol=0, atol=1e-9)
        torch.testing.assert_close(found_rows, rows, rtol=0, atol=1e-9)
