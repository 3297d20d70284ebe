"""Backward in two parts gives the gradients of backward in one."""

import pytest
import torch
from torch import nn

from workers.megagraph.recompute import apply_recompute
from workers.megagraph.split_backward import WeightLedger, apply_split_backward, settle


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3, bias=False)).double()


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape", [(7, 4), (0, 4), (2, 3, 4)])
def test_two_parts_add_up_to_one(shape: tuple[int, ...], recompute: bool) -> None:
    plain, split, ledger = layers(), layers(), WeightLedger()
    apply_split_backward([split], ledger=ledger)
    if recompute:
        apply_recompute([split])
    x = torch.randn(shape, dtype=torch.float64)
    exact, found = (x.clone().requires_grad_() for _ in range(2))
    for _ in range(2):  # gradients accumulate over micro-batches
        (plain(exact) ** 2).sum().backward()
        output = (split(found) ** 2).sum()
        with ledger.collect() as owed:
            output.backward()
        settle(owed)
    torch.testing.assert_close(found.grad, exact.grad)
    for mine, theirs in zip(gradients(split), gradients(plain), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert not mine.requires_grad


def test_the_first_part_leaves_weights_alone_and_the_second_completes_them() -> None:
    model, ledger = layers(), WeightLedger()
    apply_split_backward([model], ledger=ledger)
    output = model(torch.randn(6, 4, dtype=torch.float64)).sum()
    with ledger.collect() as owed:
        output.backward()
    assert [gradient is None for gradient in gradients(model)] == [True, True, False, False, True]
    settle(owed)
    assert not any(gradient is None for gradient in gradients(model))


def test_backward_outside_the_ledger_is_whole() -> None:
    plain, split = layers(), layers()
    apply_split_backward([split], ledger=WeightLedger())
    x = torch.randn(6, 4, dtype=torch.float64)
    for model in (plain, split):
        model(x).square().sum().backward()
    for mine, theirs in zip(gradients(split), gradients(plain), strict=True):
        torch.testing.assert_close(mine, theirs)
