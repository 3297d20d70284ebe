import torch
from torch import nn

from workers.comm import reduce
from workers.comm.axis import Axis
from workers.mqgnn.exchange import AllReduce


class TwoHeads(nn.Module):
    """One head is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.used(x)


def test_alone_gradients_and_loss_stay_as_they_are():
    model = TwoHeads()
    rule = AllReduce(model, axis=Axis())
    rule.zero()
    loss = model(torch.ones(4, 3)).square().sum()
    expected = torch.autograd.grad(loss, model.used.weight, retain_graph=True)[0]
    loss.backward()
    assert rule.combine(loss) == loss
    assert torch.equal(model.used.weight.grad, expected)


def test_zero_clears_what_backward_left():
    model = TwoHeads()
    rule = AllReduce(model, axis=Axis())
    model(torch.ones(4, 3)).sum().backward()
    rule.zero()
    assert not model.used.weight.grad.any()


def test_a_parameter_without_gradient_counts_as_zero():
    model = TwoHeads()
    rule = AllReduce(model, axis=Axis())
    rule.zero()
    model(torch.ones(4, 3)).sum().backward()
    rule.combine(torch.zeros(()))
    assert not model.unused.weight.grad.any()


def test_parameters_larger_than_a_bucket_or_of_another_dtype_get_their_own(monkeypatch):
    monkeypatch.setattr(reduce, "BUCKET_BYTES", 32)
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(2, 2).double()])
    rule = AllReduce(model, axis=Axis())
    for number, parameter in enumerate(model.parameters()):
        parameter.grad.fill_(number)
    assert rule.combine(torch.tensor(7.0)) == 7.0
    assert [float(parameter.grad.unique()) for parameter in model.parameters()] == [0, 1, 2, 3, 4, 5]
    rule.zero()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_frozen_parameters_travel_not():
    model = TwoHeads()
    model.unused.requires_grad_(False)
    AllReduce(model, axis=Axis())
    assert model.unused.weight.grad is None
