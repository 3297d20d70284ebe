"""A user's module, its convolutions taken over one call at a time: what makes it run on blocks without its knowing.

PyG's modules are code, not lists of layers. What they have in common is that rows meet in their convolutions alone
(``MessagePassing``), called ``(x, edge_index)``. While ``taken_over`` lasts, each of these calls goes to a function of
ours, which knows how many came before it; all code between them runs as it is written. Where that cannot be (a
convolution is given other edges, or more than them), ``NotApartError`` says why, and the module runs whole.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.nn import MessagePassing

# (number of the call, from 0; the convolution; its input) -> its output
Convolve = Callable[[int, nn.Module, Tensor], Tensor]


class NotApartError(Exception):
    """A module cannot run call by call; the message says why, for a line of the log. Users never see it raised."""


@contextmanager
def taken_over(model: nn.Module, *, edge_index: Tensor, convolve: Convolve) -> Iterator[None]:
    """Have ``convolve`` answer the calls of the convolutions of ``model`` with the very tensor ``edge_index``.

    ``convolve`` may call the convolution itself. Raises ``NotApartError`` out of the call that asks for more.
    """
    numbers, is_ours = itertools.count(), [True]

    def replaced(convolution: nn.Module) -> Callable[..., Tensor]:
        written = convolution.forward
        signature = inspect.signature(written)

        def forward(*values: Any, **options: Any) -> Tensor:
            if not is_ours[0]:
                return written(*values, **options)
            x = _only_x(signature.bind(*values, **options).arguments, edge_index, name=type(convolution).__name__)
            is_ours[0] = False
            try:
                return convolve(next(numbers), convolution, x)
            finally:
                is_ours[0] = True

        return forward

    convolutions = (module for module in model.modules() if isinstance(module, MessagePassing))
    with _forwards({convolution: replaced(convolution) for convolution in convolutions}):
        yield


@contextmanager
def one_row_allowed(model: nn.Module) -> Iterator[None]:
    """A batch norm in training that meets a single row, which has no variance, uses what it has learned so far."""

    def replaced(norm: _BatchNorm) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if norm.training and len(x) == 1 and norm.running_mean is not None:
                return functional.batch_norm(
                    x, norm.running_mean, norm.running_var, norm.weight, norm.bias, training=False, eps=norm.eps
                )
            return type(norm).forward(norm, x)

        return forward

    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    with _forwards({norm: replaced(norm) for norm in norms}):
        yield


@contextmanager
def _forwards(replacements: dict[nn.Module, Callable[..., Tensor]]) -> Iterator[None]:
    """Let each module run another ``forward``; its hooks are called as ever."""
    with ExitStack() as stack:
        for module, forward in replacements.items():
            before = vars(module).get("forward")
            module.forward = forward
            if before is None:
                stack.callback(delattr, module, "forward")
            else:
                stack.callback(setattr, module, "forward", before)
        yield


def _only_x(arguments: dict[str, Any], edge_index: Tensor, *, name: str) -> Tensor:
    """The rows of a call ``(x, edge_index)``, where it is one."""
    given = {key: value for key, value in arguments.items() if value is not None and value != {} and value != ()}
    x, edges = given.pop("x", None), given.pop("edge_index", None)
    if edges is not edge_index:
        raise NotApartError(f"{name} is called with other edges than the module is given")
    if given:
        raise NotApartError(f"{name} is called with {', '.join(given)} beside x and edge_index")
    if not isinstance(x, Tensor) or x.dim() != 2:
        raise NotApartError(f"{name} is called with no matrix of rows")
    return x


def no_edges(device: torch.device) -> Tensor:
    """What stands for the edges while calls are taken over: whoever else looks at it finds none."""
    return torch.empty(2, 0, dtype=torch.int64, device=device)
