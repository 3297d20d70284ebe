"""Which model of a run is the best, and when a run that gets no better ends. Scores are equal on all ranks.

Scores come from ``workers.training.metrics.Scoreboard``, named ``{split}_{metric}``.
"""

from dataclasses import dataclass, field

from torch import Tensor, nn

from workers.spec import MetricName
from workers.training.metrics import LOWER_IS_BETTER
from workers.training.state import model_tensors


@dataclass
class BestModel:
    """This rank's weights at the best validation score so far (the first of equals), kept on the CPU."""

    metric: MetricName
    epoch: int = 0
    scores: dict[str, float] = field(default_factory=dict)  # of all parts, then
    num_worse: int = 0  # evaluations since
    state: dict[str, Tensor] | None = None

    def offer(self, model: nn.Module, *, epoch: int, scores: dict[str, float]) -> bool:
        """Keep ``model`` when it beats the best; without validation labels the newest is the best. True when kept."""
        if not self._beats(scores):
            self.num_worse += 1
            return False
        self.epoch, self.scores, self.num_worse = epoch, scores, 0
        self.state = {name: tensor.detach().cpu().clone() for name, tensor in model_tensors(model).items()}
        return True

    def has_waited(self, patience: int | None) -> bool:
        """Whether ``patience`` evaluations in a row were no better; never without a patience."""
        return patience is not None and self.num_worse >= patience

    def _beats(self, scores: dict[str, float]) -> bool:
        name = f"val_{self.metric}"
        if self.state is None or name not in scores:
            return True
        found, best = scores[name], self.scores[name]
        return found < best if self.metric in LOWER_IS_BETTER else found > best
