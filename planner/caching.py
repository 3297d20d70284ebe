"""What a sampled GNN keeps to save work: hot rows of other ranks, sampled subgraphs. A rule of the job.

In a spec a budget may be left out (None); in a plan it is a number, which the planner chose.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen

# Chosen: caches may add a tenth to the peak of a job without them; what is predicted before the margin may lie above
# what is measured by as much as a quarter.
CACHE_MEMORY_FRACTION = 0.08
# Chosen: a cached row spares its bytes on the way, a cached subgraph only sampling, which is fast.
_ROWS_SHARE = 0.75
_MOST_BYTES = 2**50

# Where the rows of node features are while a job trains: on every rank, or dealt out to the ranks.
FeaturePlace = Literal["local", "remote"]
# How hot a row is: by the chance that a mini-batch needs it, or by the degree of its node.
CachePolicy = Literal["inclusion", "degree"]


class CacheRule(Frozen):
    """``feature_bytes`` hold rows of other ranks (only of ``remote`` features), the hottest by ``policy``.

    Period k, from 0, is the next ``reuse`` · ``reuse_growth``ᵏ epochs: all of them use the seeds and samples of the
    first, of which ``subgraph_bytes`` hold what fits. Neighbours whose rows ``feature_bytes`` hold are drawn ``prefer``
    times as often as others, and count for less. ``off`` stands for a rule without any of it.
    """

    feature_bytes: int | None = Field(default=None, ge=0, le=_MOST_BYTES, description="bytes of cached rows")
    policy: CachePolicy = "inclusion"
    prefer: float = Field(default=1.0, ge=1, le=1000, description="how much more often hot neighbours are drawn")
    subgraph_bytes: int | None = Field(default=None, ge=0, le=_MOST_BYTES, description="bytes of cached subgraphs")
    reuse: int = Field(default=1, ge=1, le=1_000_000, description="R₀: epochs that use what one of them samples")
    reuse_growth: float = Field(default=1.0, ge=1, le=100, description="ρ: factor from one such period to the next")

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, given: Any) -> Any:
        # YAML 1.1 reads a bare ``off`` as false.
        return {"feature_bytes": 0, "subgraph_bytes": 0} if given is False or given == "off" else given

    def settle(self, *, budget_bytes: int, features: FeaturePlace) -> "CacheRule":
        """The rule with its bytes filled in: ``budget_bytes`` are shared by what is of use and was left open."""
        is_open = {
            "feature_bytes": features == "remote" and self.feature_bytes is None,
            "subgraph_bytes": self.reuses and self.subgraph_bytes is None,
        }
        shares = {"feature_bytes": _ROWS_SHARE, "subgraph_bytes": 1 - _ROWS_SHARE}
        if not all(is_open.values()):
            shares = dict.fromkeys(is_open, 1.0)
        chosen = {
            name: int(shares[name] * budget_bytes) if is_left else getattr(self, name) or 0
            for name, is_left in is_open.items()
        }
        return self.model_copy(update=chosen)

    def sampled_in(self, epoch: int) -> int:
        """The epoch (from 1) whose seeds and samples ``epoch`` uses: the first of its period."""
        if self.reuse_growth == 1:
            return epoch - (epoch - 1) % self.reuse
        first, length = 1, float(self.reuse)
        while epoch >= first + int(length):
            first += int(length)
            length *= self.reuse_growth
        return first

    @property
    def reuses(self) -> bool:
        """Whether any epoch may use the samples of another."""
        return self.reuse > 1 or self.reuse_growth > 1

    @property
    def is_settled(self) -> bool:
        """Whether all budgets are numbers."""
        return self.feature_bytes is not None and self.subgraph_bytes is not None

    @property
    def num_bytes(self) -> int:
        """The budgets together; what is left open counts nothing."""
        return (self.feature_bytes or 0) + (self.subgraph_bytes or 0)

    def without_bytes(self) -> "CacheRule":
        """What of the rule decides how a model is trained: all but the budgets."""
        return self.model_copy(update={"feature_bytes": None, "subgraph_bytes": None})


NO_CACHE = CacheRule(feature_bytes=0, subgraph_bytes=0)
