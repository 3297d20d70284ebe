"""How the replicas of a sampled GNN come to one model: a rule of the job, which the plan hands on to the ranks.

The symbols are those of ``docs/spec.md``: s steps of lead, δ drift, H steps between synchronisations.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen

# Chosen: a replica takes at most so many equal shares of a step's seeds, however slow the others are: its memory is
# planned for that.
LARGEST_SHARE = 2.0

SyncName = Literal["ddp", "racom", "local_sgd"]


class SyncRule(Frozen):
    """``ddp`` sums gradients in every step, ``local_sgd`` averages weights every ``first_period`` steps.

    ``racom`` lets replicas step by themselves within bounds: none is more than ``staleness`` steps ahead of the
    slowest, and none moves further than ``drift`` (a part of the reference's norm) from the weights agreed last. The
    period adapts: the less of QSR (Gu et al., ICLR 2024: ``base_period``, ``growth_rate``) and AdaComm (Wang & Joshi,
    MLSys 2019: ``first_period``), at most ``max_period``. A bare name stands for a rule with all else as it is here.
    """

    name: SyncName = "ddp"
    staleness: int = Field(default=8, ge=0, le=1_000_000, description="s: steps ahead of the slowest replica")
    drift: float = Field(default=0.2, ge=0, lt=1, description="δ: distance from the reference, in parts of its norm")
    first_period: int = Field(default=16, ge=1, le=1_000_000, description="τ₀, and the period of local_sgd")
    base_period: int = Field(default=8, ge=1, le=1_000_000, description="H_base: what QSR gives at least")
    growth_rate: float = Field(default=0.0175, gt=0, le=10, description="α of QSR, in units of the learning rate")
    max_period: int = Field(default=128, ge=1, le=1_000_000, description="H_max")
    push: bool = Field(default=False, description="send summed gradients to peers between synchronisations")

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _within_the_longest(self) -> "SyncRule":
        if self.name == "racom" and self.base_period > self.max_period:
            raise ValueError(f"sync.base_period {self.base_period} must be at most sync.max_period {self.max_period}")
        return self

    @property
    def every_step(self) -> bool:
        """Whether gradients are summed in every step and all replicas take equal shares, as no lead or drift is let."""
        return self.name == "ddp" or (self.name == "racom" and (self.staleness == 0 or self.drift == 0))

    @property
    def steps_between_means(self) -> int:
        """Steps from one mean to the next: of ``racom``, whose period adapts, the fewest that its rules begin with."""
        if self.name == "local_sgd":
            return self.first_period
        return min(self.base_period, self.first_period, self.max_period)

    def outlives_replicas(self, *, num_ranks: int) -> bool:
        """Whether the others go on when one of ``num_ranks`` replicas dies, as they step by themselves."""
        return self.name == "racom" and not self.every_step and num_ranks > 1

    def largest_share(self, *, num_ranks: int) -> float:
        """The most seeds that a replica may take in a step, in equal shares: those that step alone deal by rate."""
        return LARGEST_SHARE if self.outlives_replicas(num_ranks=num_ranks) else 1.0
