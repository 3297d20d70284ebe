import pytest
import torch
from torch import nn

from workers.mqgnn.racom.leeway import Leeway
from workers.mqgnn.racom.weights import ReplicaWeights


def weights_of_norm_one() -> ReplicaWeights:
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0]]))
    model.weight.grad = torch.zeros_like(model.weight)
    return ReplicaWeights(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))


def move(weights: ReplicaWeights, length: float) -> None:
    weights.parameters[0][0, 1] += length


def test_the_first_step_may_be_too_large_whatever_the_room():
    weights = weights_of_norm_one()
    leeway = Leeway(weights, drift=0.5)
    assert leeway.may_be_left()
    move(weights, 0.05)
    assert leeway.holds(None)
    assert leeway.drifted == pytest.approx(0.1)
    assert not leeway.may_be_left()


def test_far_from_the_bounds_nothing_is_kept_and_near_them_it_is():
    weights = weights_of_norm_one()
    leeway = Leeway(weights, drift=0.5)
    left = []
    for _ in range(7):
        move(weights, 0.05)
        assert leeway.holds(None)
        left.append(leeway.may_be_left())
    assert left[:5] == [False] * 5  # five strides are left, then three
    assert left[-1]
    weights.agree()
    leeway.begin()
    assert not leeway.may_be_left()


def test_what_was_given_to_a_mean_binds_closer_than_the_reference():
    weights = weights_of_norm_one()
    leeway = Leeway(weights, drift=0.5)
    given = [tensor.clone() for tensor in weights.everything]
    leeway.give()
    move(weights, 0.2)
    assert leeway.holds(given)
    move(weights, 0.1)
    assert not leeway.holds(given)  # 0.3 of 0.5 · (1 − 0.5)
    assert leeway.holds(None)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_step_too_long_is_shortened_to_the_nearest_bound(is_under_way):
    weights = weights_of_norm_one()
    leeway = Leeway(weights, drift=0.5)
    given = [tensor.clone() for tensor in weights.everything] if is_under_way else None
    move(weights, 7.0)
    assert not leeway.holds(given)
    leeway.shorten(given)
    assert weights.distance() == pytest.approx(0.25 if is_under_way else 0.5, rel=1e-4)
    assert leeway.holds(given)


def test_what_is_no_number_is_beyond_all_bounds():
    weights = weights_of_norm_one()
    leeway = Leeway(weights, drift=0.5)
    move(weights, float("nan"))
    assert not leeway.holds(None)
