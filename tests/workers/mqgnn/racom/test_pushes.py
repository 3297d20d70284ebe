import torch

from workers.comm.axis import Axis
from workers.mqgnn.racom.pushes import Push, Pushes


def pushes(gradient: torch.Tensor) -> Pushes:
    return Pushes([gradient], axis=Axis(ranks=(0, 1), index=0))


def push(value: float, *, clock: int, version: int = 1, num_seeds: float = 4.0) -> Push:
    return Push(torch.full((2,), value * num_seeds), clock=clock, version=version, num_seeds=num_seeds)


def test_a_fresh_push_counts_by_its_seeds():
    gradient = torch.tensor([1.0, 3.0])
    mixer = pushes(gradient)
    mixer.mix([push(5.0, clock=7)], clock=7, version=1, num_seeds=4, staleness=3)
    assert torch.equal(gradient, torch.tensor([3.0, 4.0]))
    assert mixer.figures() == {"pushes_mixed": 1.0, "push_age": 0.0, "pushes_dropped": 0.0}


def test_an_older_push_counts_less():
    gradient = torch.tensor([0.0, 0.0])
    mixer = pushes(gradient)
    mixer.mix([push(6.0, clock=6)], clock=7, version=1, num_seeds=4, staleness=3)
    torch.testing.assert_close(gradient, torch.tensor([2.0, 2.0]))  # (½ · 4 · 6) / (4 + ½ · 4)
    assert mixer.figures()["push_age"] == 1.0


def test_a_push_past_the_lead_or_from_before_the_reference_is_dropped():
    gradient = torch.tensor([1.0, 1.0])
    mixer = pushes(gradient)
    mixer.mix([push(9.0, clock=3), push(9.0, clock=7, version=0)], clock=7, version=1, num_seeds=4, staleness=3)
    assert torch.equal(gradient, torch.tensor([1.0, 1.0]))
    assert mixer.figures()["pushes_dropped"] == 2.0


def test_replicas_that_push_to_each_other_at_once_take_the_same_step():
    one, other = torch.tensor([1.0, 3.0]), torch.tensor([5.0, 4.0])
    to_one = Push(12 * other, clock=7, version=1, num_seeds=12)
    to_other = Push(4 * one, clock=7, version=1, num_seeds=4)
    pushes(one).mix([to_one], clock=7, version=1, num_seeds=4, staleness=3)
    pushes(other).mix([to_other], clock=7, version=1, num_seeds=12, staleness=3)
    torch.testing.assert_close(one, torch.tensor([4.0, 3.75]))
    torch.testing.assert_close(one, other)
