"""What a rank has learned, as tensors by name: the same names under every plan, so another plan can pick them up.

A rank knows only its own part: parameters of other stages are on the meta device and have no name here.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from workers.comm.axis import Axis


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """This rank's parameters and buffers of ``model`` by name (of tied ones the first)."""
    return {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}


def tensor_names(model: nn.Module) -> list[str]:
    """All names that tensors of ``model`` may have on any rank, in one order."""
    parameters, buffers = (named(remove_duplicate=False) for named in (model.named_parameters, model.named_buffers))
    return [name for name, _ in (*parameters, *buffers)]


def optimizer_tensors(model: nn.Module, *, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments of ``optimizer`` by parameter and kind (``head.weight/exp_avg``), made where there are none yet."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    make_moments(optimizer)
    return {
        f"{names[parameter]}/{kind}": value
        for parameter, moments in optimizer.state.items()
        for kind, value in moments.items()
    }


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Moments are made by the first step: take one that moves nothing, where none has been taken."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if optimizer.state or not parameters:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    gradients = [parameter.grad for parameter in parameters]  # kept: they may be views of what is sent
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for moments in optimizer.state.values():
        for value in moments.values():
            value.zero_()


def gather_tensors(own: Mapping[str, Tensor], *, axis: Axis) -> dict[str, Tensor]:
    """All tensors of all ranks by name, on the CPU of the first rank; empty on the others. Collective.

    Of what several ranks hold alike the first of them sends its copy; sharded tensors are put together first.
    """
    whole = {name: whole_tensor(tensor).cpu() for name, tensor in own.items()}
    if axis.group is None:
        return whole
    names: list[list[str]] = [[] for _ in axis.ranks]
    torch.distributed.all_gather_object(names, list(whole), group=axis.group)
    sender = {name: place for place in reversed(range(axis.size)) for name in names[place]}
    mine = {name: tensor for name, tensor in whole.items() if sender[name] == axis.index}
    parts: list[dict[str, Tensor]] | None = [{} for _ in axis.ranks] if axis.index == 0 else None
    torch.distributed.gather_object(mine, parts, dst=axis.ranks[0], group=axis.group)
    return {name: tensor for part in parts or () for name, tensor in part.items()}


def whole_tensor(tensor: Tensor) -> Tensor:
    """``tensor`` itself, or put together from the parts of all ranks where it is sharded. Collective then."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    group = tensor.device_mesh.get_group("shard")
    parts: list[Tensor] = [torch.empty(0)] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(parts, tensor.to_local().detach(), group=group)
    return torch.cat([part.to(tensor.device) for part in parts])  # units are cut along their first dimension
