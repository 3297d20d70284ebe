"""The optimiser of both runtimes: Adam or AdamW by the spec, with clipping by the global norm of the gradients.

Clipping hangs on ``optimizer.step``: gradients are complete there (summed over all ranks), wherever they came from.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from workers.spec import TrainingSpec

# model -> the parameters that weight decay pulls towards zero
DecayRule = Callable[[nn.Module], Iterable[nn.Parameter]]

_CLASSES = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def build_optimizer(
    model: nn.Module,
    *,
    spec: TrainingSpec,
    decayed: DecayRule,
    gradient_norm: Callable[[], Tensor] | None = None,
) -> torch.optim.Optimizer:
    """Adam with L2 regularisation (Kingma & Ba, ICLR 2015) or AdamW (Loshchilov & Hutter, ICLR 2019), fused.

    It trains what of ``model`` lies here (not on the meta device) and is not frozen, which may be nothing.
    ``gradient_norm`` is asked before a clipped update for the norm over all ranks; without it all parameters lie here.
    Collective if ``gradient_norm`` is.
    """
    own = [parameter for parameter in model.parameters() if parameter.requires_grad and not parameter.is_meta]
    pulled = set(decayed(model))
    free = {"weight_decay": 0.0}
    groups = [
        *({"params": kind} for kind in _by_kind(parameter for parameter in own if parameter in pulled)),
        *({"params": kind, **free} for kind in _by_kind(parameter for parameter in own if parameter not in pulled)),
    ]
    optimizer = _CLASSES[spec.optimizer](
        groups or [{"params": []}],
        lr=spec.learning_rate,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    max_norm = spec.clip_norm
    if max_norm is not None:
        norm = gradient_norm or (lambda: nn.utils.get_total_norm(_gradients(own)))
        optimizer.register_step_pre_hook(lambda *_: _clip(own, norm=norm(), max_norm=max_norm))
    return optimizer


def every_parameter(model: nn.Module) -> Iterable[nn.Parameter]:
    """The decay rule of sampled GNNs, as in their papers."""
    return model.parameters()


def weight_matrices(model: nn.Module) -> Iterable[nn.Parameter]:
    """The decay rule of graph transformers: weights of linear maps.

    Biases, norms, and the small tables (degree, distance) are left free: pulling a bias towards zero would pull the
    far bucket up to the near ones.
    """
    return (module.weight for module in model.modules() if isinstance(module, nn.Linear))


def _clip(parameters: list[nn.Parameter], *, norm: Tensor, max_norm: float) -> None:
    """Scale the gradients, whose ``norm`` over all ranks is given, to ``max_norm`` at most (Pascanu et al., 2013)."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in _gradients(parameters):
        gradient.mul_(factor)


def _gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _by_kind(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The sharded ones and the whole ones apart, as an optimiser's fused pass wants them."""
    kinds: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for parameter in parameters:
        kinds[isinstance(parameter, DTensor)].append(parameter)
    return [kind for kind in kinds if kind]
