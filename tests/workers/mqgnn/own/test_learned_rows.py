"""Rows learned for each node in a script: steps by hand, nodes without features, kinds of nodes without any."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCNConv, HeteroConv, SAGEConv

from tests.workers.mqgnn.own.modules import WIDTH_IN, Sized, Typed, pyg_data, typed_data
from workers.errors import DatasetInvalidError, ModelInvalidError
from workers.mqgnn import Trainer
from workers.mqgnn.seed_order import SeedOrder
from workers.spec import LinkSpec

DATA = pyg_data()
SIZE = 6


def module(width_in: int = WIDTH_IN + SIZE, **options) -> Sized:
    torch.manual_seed(3)
    return Sized(GCNConv, width_in, 4, **options)


def make(model: nn.Module, data: Data | HeteroData = DATA, **settings) -> Trainer:
    usual = {"fanouts": (-1, -1), "batch_size": 64, "loss": functional.cross_entropy, "node_embedding_size": SIZE}
    return Trainer(model, data, **usual | settings)


def featureless() -> Data:
    """Rings of nodes of one class each: who a node is can be learned from its neighbours alone."""
    nodes = torch.arange(160)
    ring, place = nodes // 40, nodes % 40
    steps = [torch.stack((nodes, ring * 40 + (place + step) % 40)) for step in (1, 2, 3)]
    edges = torch.cat([*steps, *(step.flip(0) for step in steps)], dim=1)
    is_test = place % 4 == 3
    return Data(edge_index=edges, y=ring, train_mask=~is_test, test_mask=is_test, num_nodes=160)


def test_steps_are_those_of_torchs_sparse_embedding_and_go_on_in_another_fit():
    model = module().double()
    trainer = make(model)
    embedding = nn.Embedding.from_pretrained(model.node_table.weight.clone(), freeze=False, sparse=True)
    reports = [*trainer.fit(1), *trainer.fit(1)]

    expected = module().double()
    optimizers = (
        torch.optim.Adam(expected.parameters(), lr=0.01),
        torch.optim.SparseAdam(embedding.parameters(), lr=0.01),
    )
    order = SeedOrder(np.flatnonzero(DATA.train_mask), 64, seed=0)
    sources, targets = DATA.edge_index.numpy()
    total = 0.0
    for task in order.tasks(0, 2 * order.steps_per_epoch):
        seeds = torch.from_numpy(order.part(epoch=task.epoch, batch=task.batch, rank=0))
        near = np.union1d(seeds, sources[np.isin(targets, seeds)])
        nodes = torch.from_numpy(np.union1d(near, sources[np.isin(targets, near)]))  # those of two hops
        rows = torch.zeros(300, SIZE, dtype=torch.float64).index_put((nodes,), embedding(nodes))
        outputs = expected(torch.cat((DATA.x.double(), rows), dim=1), DATA.edge_index)
        loss = functional.cross_entropy(outputs[seeds], DATA.y[seeds])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        total += len(seeds) * loss.item()
    assert sum(report.loss for report in reports) * len(order.train_nodes) == pytest.approx(total, rel=1e-9)
    torch.testing.assert_close(model.node_table.weight, embedding.weight.detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(model.head.weight, expected.head.weight, rtol=0, atol=1e-9)


@pytest.mark.parametrize("habit", [{}, {"residual": True}, {"num_layers": 1}])
def test_nodes_without_features_are_learned_and_predicted_as_on_the_whole_graph(habit):
    data = featureless()
    trainer = make(module(SIZE, **habit), data, batch_size=16)
    assert trainer.form == ("padded" if habit.get("residual") else "whole" if habit else "trimmed")
    before = trainer.model.node_table.weight.clone()
    trainer.fit(12)
    with torch.no_grad():
        expected = trainer.model.eval()(trainer.model.node_table.weight, data.edge_index)
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-4, atol=1e-4)
    assert trainer.evaluate()["test_accuracy"] > 0.8
    assert ((trainer.model.node_table.weight - before).abs().amax(dim=1) > 0).all()

    saved = trainer.model.state_dict()
    again = module(SIZE, **habit)
    make(again, data, batch_size=16)  # which gives it a table
    again.load_state_dict(saved)
    used = Trainer(again, data, fanouts=(-1, -1), loss=functional.cross_entropy)
    assert torch.equal(used.predict(), trainer.predict())


def test_links_are_learned_between_nodes_without_features():
    data = featureless()
    links = LinkSpec(num_val=0.1, num_test=0.2, eval_negatives=20)
    trainer = make(module(SIZE, num_layers=2), data, links=links, loss=None, batch_size=64)
    before = trainer.evaluate()["test_roc_auc"]
    trainer.fit(15)
    assert trainer.evaluate()["test_roc_auc"] > max(0.7, before)


def test_kinds_of_nodes_without_features_are_learned_beside_those_that_have_some():
    data = typed_data()
    del data["author"].x
    data["author"].num_nodes = 80
    torch.manual_seed(0)
    trainer = make(Typed(), data, fanouts=(5, 5), batch_size=32)
    table = trainer.model.node_table
    assert len(table.weight) == 280
    before = table.weight.clone()
    trainer.fit(20)
    assert trainer.evaluate()["test_accuracy"] > 0.7
    moved = (table.weight - before).abs().amax(dim=1) > 0
    assert moved[:200].any()
    assert moved[200:].float().mean() > 0.9  # a few authors were never drawn
    with torch.no_grad():
        x = {"paper": torch.cat((data["paper"].x, table.weight[:200]), dim=1), "author": table.weight[200:]}
        expected = trainer.model.eval()(x, data.edge_index_dict)["paper"]
    torch.testing.assert_close(trainer.predict(), expected, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_told():
    with pytest.raises(DatasetInvalidError, match=r"data.x is needed, a tensor; found NoneType"):
        make(module(), featureless(), node_embedding_size=0)
    trained = module(SIZE)
    make(trained, featureless())
    with pytest.raises(ModelInvalidError, match="node_embedding_size 4 was asked for; the module has learned 6"):
        make(trained, featureless(), node_embedding_size=4)
    with pytest.raises(ModelInvalidError, match="has learned rows for 160 nodes, data has 300"):
        make(trained, DATA)
    taken = module()
    taken.node_table = nn.Linear(2, 2)
    with pytest.raises(ModelInvalidError, match="has a node_table of its own"):
        make(taken)


def test_a_kind_of_nodes_without_features_and_without_rows_is_told():
    data = typed_data()
    del data["author"].x
    data["author"].num_nodes = 80
    layers = HeteroConv({kind: SAGEConv((-1, -1), 3) for kind in data.edge_types})
    with pytest.raises(DatasetInvalidError, match=r"data\['author'\].x is needed, a tensor; found NoneType"):
        make(layers, data, node_embedding_size=0)
