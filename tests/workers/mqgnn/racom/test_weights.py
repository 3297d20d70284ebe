import pytest
import torch
from torch import nn

from workers.mqgnn.racom.weights import ReplicaWeights, norm


def replica(seed: int = 0, *, momentum: bool = False) -> tuple[nn.Module, torch.optim.Optimizer, ReplicaWeights]:
    torch.manual_seed(seed)
    model = nn.Linear(5, 3).double()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
        if momentum
        else torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    )
    return model, optimizer, ReplicaWeights(model, optimizer=optimizer)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimizer.step()


@pytest.mark.parametrize("momentum", [False, True])
def test_moments_that_take_in_a_late_mean_are_as_if_it_had_come_at_once(momentum):
    late, at_once = replica(momentum=momentum), replica(momentum=momentum)
    for model, optimizer, _ in (late, at_once):
        for seed in range(3):
            step(model, optimizer, seed=seed)
    _, _, weights = late
    snapshot = [tensor.clone() for tensor in weights.everything]
    means = [tensor * 0.5 + 0.1 for tensor in snapshot]
    at_once[2].take_in(means, snapshot=None, num_steps=0)
    for seed in range(3, 7):
        step(*late[:2], seed=seed)
        step(*at_once[:2], seed=seed)
    weights.take_in(means, snapshot=snapshot, num_steps=4)
    num_weights = len(weights.averaged_weights)
    for one, other in zip(weights.everything[num_weights:], at_once[2].everything[num_weights:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_weights_that_take_in_a_late_mean_keep_what_the_steps_since_have_added():
    model, optimizer, weights = replica()
    snapshot = [tensor.clone() for tensor in weights.everything]
    before = model.weight.detach().clone()
    step(model, optimizer, seed=1)
    moved = model.weight.detach() - before
    means = [tensor + 1 for tensor in snapshot]
    weights.take_in(means, snapshot=snapshot, num_steps=1)
    torch.testing.assert_close(model.weight.detach(), before + 1 + moved)
    assert torch.equal(weights.reference[0], before + 1)
    assert weights.distance() == pytest.approx(norm([moved, model.bias.detach() - weights.reference[1]]))


def test_what_is_restored_is_what_was_kept_moments_and_count_of_steps_too():
    model, optimizer, weights = replica()
    step(model, optimizer, seed=1)
    weights.keep()
    kept = [tensor.clone() for tensor in weights.everything]
    step(model, optimizer, seed=2)
    once = [tensor.clone() for tensor in weights.everything]
    weights.restore()
    assert all(torch.equal(one, other) for one, other in zip(weights.everything, kept, strict=True))
    step(model, optimizer, seed=2)
    assert all(torch.equal(one, other) for one, other in zip(weights.everything, once, strict=True))


def test_weights_are_drawn_just_inside_on_the_straight_way():
    model, optimizer, weights = replica()
    step(model, optimizer, seed=1)
    before = [parameter.clone() for parameter in weights.parameters]
    away = weights.distance()
    weights.draw_towards(weights.reference, most=2 * away)
    assert all(torch.equal(one, other) for one, other in zip(weights.parameters, before, strict=True))
    weights.draw_towards(weights.reference, most=away / 4)
    assert away / 4 * 0.999 < weights.distance() <= away / 4
    for now, was, centre in zip(weights.parameters, before, weights.reference, strict=True):
        torch.testing.assert_close(now - centre, (was - centre) / 4, rtol=1e-5, atol=1e-12)


def test_a_step_at_another_rate_leaves_the_optimisers_own():
    model, _, weights = replica()
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad.fill_(1.0)
    weights.step_at(0.5)
    assert weights.learning_rate() == 0.01
    torch.testing.assert_close(model.weight.detach(), before - 0.5, rtol=0, atol=1e-6)
