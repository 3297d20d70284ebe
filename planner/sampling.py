"""Where the mini-batches of a sampled GNN are made: a rule of the job, which the plan hands on to the ranks."""

from typing import Any, Literal

from pydantic import Field, model_validator

from planner.frozen import Frozen

# By the replicas themselves, or by processes of their own, on other nodes where there are any.
Placement = Literal["local", "remote"]


class SamplingRule(Frozen):
    """``remote``: ``num_actors`` processes with ``cpus_per_actor`` logical CPUs each sample and prepare for all ranks.

    A bare name stands for a rule with all else as it is here.
    """

    placement: Placement = "local"
    num_actors: int = Field(default=2, ge=1, le=1024, description="processes that sample and prepare")
    cpus_per_actor: float = Field(default=1.0, gt=0, le=1024, description="logical CPUs of each of them")

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, given: Any) -> Any:
        return {"placement": given} if isinstance(given, str) else given

    @property
    def is_remote(self) -> bool:
        """Whether mini-batches are made outside of the ranks."""
        return self.placement == "remote"
