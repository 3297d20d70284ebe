"""Batch normalisation over rows that lie anywhere: statistics are sums, and sums are asked of a ``SumExchange``.

    y = (x - mean) / sqrt(var + eps) * weight + bias            mean and var over all rows of the micro-batch

Source: Ioffe and Szegedy, ICML 2015. As ``torch.nn.BatchNorm1d`` computes it, for any number of shards and replicas,
empty ones included: the count of the rows is a sum, too. Evaluation uses running statistics and talks to nobody.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from workers.errors import ModelInvalidError
from workers.ops.exchanges import LocalSums, SumExchange


class CountedBatchNorm(nn.Module):
    """Normalises the columns of [n, d]; ``batch_sums`` sums over all processes that hold rows of the micro-batch.

    While ``learns`` is False (a forward pass that only repeats another), running statistics stay as they are; a
    micro-batch without rows, which a short step may have, leaves them alone, too.
    """

    def __init__(self, num_columns: int, *, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(num_columns))
        self.bias = nn.Parameter(torch.zeros(num_columns))
        self.register_buffer("running_mean", torch.zeros(num_columns))
        self.register_buffer("running_var", torch.ones(num_columns))
        self.batch_sums: SumExchange = LocalSums()
        self.learns = True

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] of the same shape."""
        mean, var = self._statistics(x) if self.training else (self.running_mean, self.running_var)
        return (x - mean) * (var + self.eps).rsqrt() * self.weight + self.bias

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Two passes, as x may lie far from zero: squares of deviations lose nothing. Sums in float64, as many ranks
        add in another order than one, and gradients behind a norm nearly cancel."""
        wide = x.double()
        own = torch.cat([wide.sum(dim=0), wide.new_tensor([len(x)])])
        total = self.batch_sums.sum(own)
        count = total[-1].detach().clamp(min=1)
        mean = total[:-1] / count
        var = self.batch_sums.sum((wide - mean).square().sum(dim=0)) / count
        mean, var, count, total = (part.to(x.dtype) for part in (mean, var, count, total))
        if self.learns:
            with torch.no_grad():
                unbiased = var * count / (count - 1).clamp(min=1)
                weight = self.momentum * (total[-1] > 0).to(x.dtype)
                self.running_mean.lerp_(mean, weight)
                self.running_var.lerp_(unbiased, weight)
        return mean, var


def count_all_rows(model: nn.Module) -> None:
    """Put a ``CountedBatchNorm`` of the same numbers in the place of every ``BatchNorm1d`` within ``model``.

    Torch's own would see the rows of one process. Raises ``ModelInvalidError`` for a batch norm of another kind.
    """
    made: dict[nn.Module, CountedBatchNorm] = {}
    for path, norm in list(model.named_modules(remove_duplicate=False)):
        if isinstance(norm, _BatchNorm):
            if norm not in made:
                made[norm] = _counted(norm, path=path)
            model.set_submodule(path, made[norm])


def _counted(norm: _BatchNorm, *, path: str) -> CountedBatchNorm:
    if not (type(norm) is nn.BatchNorm1d and norm.affine and norm.track_running_stats and norm.momentum is not None):
        raise ModelInvalidError(
            f"{path} is {norm}, which would see the rows of one process alone: take BatchNorm1d with weights, running"
            " statistics and a momentum, whose rows are counted over all processes, or LayerNorm"
        )
    counted = CountedBatchNorm(norm.num_features, momentum=norm.momentum, eps=norm.eps)
    counted.load_state_dict({name: value for name, value in norm.state_dict().items() if name != "num_batches_tracked"})
    return counted.train(norm.training)
