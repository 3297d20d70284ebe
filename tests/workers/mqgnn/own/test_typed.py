import pytest
import torch
from torch.nn import functional

from tests.workers.mqgnn.own.modules import WIDTH_OUT, Typed, typed_data
from workers.errors import DatasetInvalidError
from workers.mqgnn import Trainer

DATA = typed_data()


def make(**settings) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Typed(), DATA, **{"fanouts": (4, 4), "batch_size": 32, "loss": functional.cross_entropy} | settings)


def test_a_module_over_kinds_of_nodes_learns_and_predicts_as_on_the_whole_graph():
    trainer = make()
    reports = trainer.fit(6)
    assert reports[-1].loss < reports[0].loss / 1.5
    with torch.no_grad():
        expected = trainer.model.eval()(DATA.x_dict, DATA.edge_index_dict)["paper"]
    torch.testing.assert_close(trainer.predict([7, 3]), expected[[7, 3]])
    hit = (expected.argmax(dim=1) == DATA["paper"].y)[DATA["paper"].test_mask]
    assert trainer.evaluate()["test_accuracy"] == pytest.approx(float(hit.float().mean()))


def test_with_all_neighbours_a_step_is_that_on_the_whole_graph():
    trainer = make(fanouts=(-1, -1), batch_size=1000)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=1.0)
    trainer.fit(1)
    model = make().model
    outputs = model(DATA.x_dict, DATA.edge_index_dict)["paper"]
    mask = DATA["paper"].train_mask
    functional.cross_entropy(outputs[mask], DATA["paper"].y[mask]).backward()
    for found, start, parameter in zip(trainer.model.parameters(), before, model.parameters(), strict=True):
        step = torch.zeros_like(start) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(start - found, step, rtol=1e-4, atol=1e-5)


def test_a_batch_without_a_kind_of_nodes_is_a_batch():
    data = typed_data()
    for kind in data.edge_types:
        data[kind].edge_index = data[kind].edge_index[:, :0]
    trainer = Trainer(Typed(), data, fanouts=(2, 2), loss=functional.cross_entropy)
    trainer.fit(1)
    assert trainer.predict([1]).shape == (1, WIDTH_OUT)


def test_threads_beside_the_training_change_no_bit():
    serial, pipelined = make(), make(pipelined=True, num_sampling_workers=2)
    assert [report.loss for report in serial.fit(2)] == [report.loss for report in pipelined.fit(2)]


def test_faulty_kinds_are_named():
    two = typed_data()
    two["author"].y = torch.zeros(80).long()
    with pytest.raises(DatasetInvalidError, match="one kind of nodes must have labels"):
        Trainer(Typed(), two)
    bare = typed_data()
    del bare["author"].x
    with pytest.raises(DatasetInvalidError, match=r"data\['author'\].x is needed"):
        Trainer(Typed(), bare)
    far = typed_data()
    far["paper", "by", "author"].edge_index = torch.tensor([[0], [80]])
    with pytest.raises(DatasetInvalidError, match="edge 0 names author 80"):
        Trainer(Typed(), far)
