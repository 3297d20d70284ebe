"""Backward in two parts gives the gradients of backward in one; products of bfloat16 are those of rounded operands."""

import copy

import pytest
import torch
from torch import nn

from planner.profiles import Precision
from workers.megagraph.linear_layers import apply_products
from workers.megagraph.recompute import apply_recompute
from workers.megagraph.split_backward import WeightLedger, settle


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3, bias=False)).double()


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("shape", [(7, 4), (0, 4), (2, 3, 4)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_parts_add_up_to_one(shape: tuple[int, ...], recompute: bool, precision: Precision) -> None:
    dtype = torch.float32 if precision == "bfloat16" else torch.float64
    plain, split, ledger = layers().to(dtype), layers().to(dtype), WeightLedger()
    apply_products([plain], precision=precision)
    apply_products([split], precision=precision, ledger=ledger)
    if recompute:
        apply_recompute([split])
    x = torch.randn(shape, dtype=dtype)
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
    apply_products([model], precision="float32", ledger=ledger)
    output = model(torch.randn(6, 4, dtype=torch.float64)).sum()
    with ledger.collect() as owed:
        output.backward()
    assert [gradient is None for gradient in gradients(model)] == [True, True, False, False, True]
    settle(owed)
    assert not any(gradient is None for gradient in gradients(model))


def test_backward_outside_the_ledger_is_whole() -> None:
    plain, split = layers(), layers()
    apply_products([split], precision="float32", ledger=WeightLedger())
    x = torch.randn(6, 4, dtype=torch.float64)
    for model in (plain, split):
        model(x).square().sum().backward()
    for mine, theirs in zip(gradients(split), gradients(plain), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("bias", [True, False])
def test_rounded_products_are_what_autograd_makes_of_casts(bias: bool) -> None:
    torch.manual_seed(3)
    rounded = nn.Linear(24, 16, bias=bias)
    exact = copy.deepcopy(rounded)
    apply_products([rounded], precision="bfloat16")
    x = torch.randn(9, 24)
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    y = (theirs.to(torch.bfloat16) @ exact.weight.to(torch.bfloat16).T).float()
    wanted = y if exact.bias is None else y + exact.bias
    found = rounded(ours)
    assert torch.equal(found, wanted)
    for output in (found, wanted):
        output.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)
    for mine, other in zip(gradients(rounded), gradients(exact), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)
        assert mine.dtype == torch.float32


def test_backward_keeps_the_weight_itself_so_a_sharded_one_may_go_in_between() -> None:
    layer = nn.Linear(8, 8)
    apply_products([layer], precision="bfloat16")
    y = layer(torch.randn(3, 8, requires_grad=True))
    product = y.grad_fn.next_functions[0][0] if layer.bias is None else y.grad_fn
    kept = [tensor.dtype for tensor in product.saved_tensors if tensor.shape == layer.weight.shape]
    assert kept == [torch.float32]
