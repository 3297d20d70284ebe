from dataclasses import replace

import pytest
import torch

from tests.kit.objectives import CROSS_ENTROPY
from tests.workers.mqgnn import runs
from tests.workers.mqgnn.graphs import clustered_graph, graph_of_edges
from tests.workers.mqgnn.runs import Settings, train_by_hand

GRAPH = clustered_graph(300, degree=10)


def assert_equal_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("num_sampling_workers", [1, 2, 4])
@pytest.mark.parametrize("model", ["graphsage", "gcn"])
def test_a_pipelined_run_equals_the_serial_run_bit_for_bit(model, num_sampling_workers, dropout):
    serial = Settings(model=model, dropout=dropout, dtype=torch.float32)
    pipelined = replace(serial, pipelined=True, num_sampling_workers=num_sampling_workers)
    weights, losses = train_by_hand(GRAPH, serial)
    weights_again, losses_again = train_by_hand(GRAPH, pipelined)
    assert_equal_bits(weights, weights_again)
    assert losses == losses_again


def test_a_serial_run_repeats_itself_bit_for_bit_and_another_seed_differs():
    settings = Settings(dropout=0.5)
    (weights, _), (again, _), (other, _) = (
        train_by_hand(GRAPH, each) for each in (settings, settings, replace(settings, seed=1))
    )
    assert_equal_bits(weights, again)
    assert not all(torch.equal(weights[name], other[name]) for name in weights)


def test_what_draws_from_torchs_own_generator_depends_on_the_step_alone(monkeypatch):
    """As the loss or the module of somebody else may: else a resumed run would draw other numbers."""
    monkeypatch.setattr(runs, "CROSS_ENTROPY", lambda logits, y: CROSS_ENTROPY(logits, y) * torch.rand(()))
    settings = Settings(dtype=torch.float32)
    weights, losses = train_by_hand(GRAPH, settings)
    again, losses_again = train_by_hand(GRAPH, settings, watch=lambda *_: torch.rand(7))
    assert losses == losses_again
    assert_equal_bits(weights, again)
    assert len({round(loss, 6) for loss in losses}) == len(losses)


def test_training_learns():
    _, losses = train_by_hand(GRAPH, Settings(epochs=20))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("batch_size", [1, 59, 300])
def test_any_rest_of_the_training_nodes_makes_a_last_batch(batch_size):
    graph = clustered_graph(100)
    num_train = int((graph.split == 0).sum())
    _, losses = train_by_hand(graph, Settings(batch_size=batch_size, epochs=1))
    assert len(losses) == -(-num_train // batch_size)


def test_a_last_batch_of_one_seed_works():
    graph = clustered_graph(100)
    num_train = int((graph.split == 0).sum())
    weights, losses = train_by_hand(graph, Settings(batch_size=num_train - 1, epochs=2, dropout=0.5))
    assert len(losses) == 4
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize("model", ["graphsage", "gcn"])
def test_isolated_training_nodes_keep_loss_and_weights_finite(model):
    graph = graph_of_edges([(0, 1), (1, 0)], num_nodes=20)
    weights, losses = train_by_hand(graph, Settings(model=model, batch_size=7))
    assert torch.tensor(losses).isfinite().all()
    assert all(tensor.isfinite().all() for tensor in weights.values())
