"""Counted batch norm is torch's, with statistics that may be sums over processes."""

import pytest
import torch
from torch import nn

from workers.errors import ModelInvalidError
from workers.megagraph.recompute import apply_recompute
from workers.models.batch_norm import CountedBatchNorm, count_all_rows


def test_training_and_running_statistics_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = CountedBatchNorm(5).double(), torch.nn.BatchNorm1d(5).double()
    for _ in range(3):
        x = torch.randn(11, 5, dtype=torch.float64) * 3 + 7
        left, right = (x.clone().requires_grad_() for _ in range(2))
        mine, exact = ours(left), theirs(right)
        torch.testing.assert_close(mine, exact)
        weights = torch.randn_like(x)
        (mine * weights).sum().backward()
        (exact * weights).sum().backward()
        torch.testing.assert_close(left.grad, right.grad)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_a_pass_that_only_repeats_leaves_running_statistics_alone() -> None:
    norm = CountedBatchNorm(2)
    norm.learns = False
    norm(torch.randn(4, 2))
    assert not norm.running_mean.any()


def test_a_forward_pass_that_is_repeated_for_backward_teaches_nothing() -> None:
    x = torch.randn(6, 3)
    norms = [CountedBatchNorm(3) for _ in range(2)]
    apply_recompute(norms[1:])
    for norm in norms:
        norm(x.clone().requires_grad_()).square().sum().backward()
    torch.testing.assert_close(norms[0].running_mean, norms[1].running_mean, rtol=0, atol=0)
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var, rtol=0, atol=0)
    assert norms[1].learns


def test_torchs_norms_become_counted_ones_of_the_same_numbers_shared_ones_once() -> None:
    shared = nn.BatchNorm1d(3, momentum=0.3, eps=1e-3)
    model = nn.Sequential(shared, nn.Sequential(nn.Linear(3, 3), shared), nn.LayerNorm(3))
    nn.init.uniform_(shared.weight)
    x = torch.randn(7, 3)
    expected = model(x)
    statistics = shared.running_mean.clone()
    shared.reset_running_stats()
    count_all_rows(model)
    assert isinstance(model[0], CountedBatchNorm)
    assert model[0] is model[1][1]
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model[0].running_mean, statistics)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3), nn.BatchNorm1d(3, affine=False), nn.BatchNorm1d(3, momentum=None)], ids=str
)
def test_norms_that_cannot_be_counted_are_refused(norm: nn.Module) -> None:
    with pytest.raises(ModelInvalidError, match=r"1 is BatchNorm.*see the rows of one process alone"):
        count_all_rows(nn.Sequential(nn.Identity(), norm))
