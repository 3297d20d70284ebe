"""What a job is: the spec that a user submits, and the states that it goes through."""

from enum import StrEnum

from pydantic import Field, ValidationInfo, field_validator, model_validator

from planner.frozen import Frozen
from workers.spec import TrainSpec


class JobState(StrEnum):
    """Where a job is; the legal moves stand in ``service.states``."""

    PENDING = "PENDING"
    PROFILING = "PROFILING"
    PLANNING = "PLANNING"
    SCHEDULING = "SCHEDULING"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ResourcesSpec(Frozen):
    """What the job asks of the cluster: ranks, and CPUs and GPUs for each of them.

    The planner chooses between ``min_workers`` and ``num_workers`` ranks; without ``min_workers`` there is no choice.
    """

    num_workers: int = Field(default=2, ge=1, le=8192)
    min_workers: int | None = Field(default=None, ge=1, le=8192)
    cpus_per_worker: float = Field(default=1.0, gt=0, le=1024)
    gpus_per_worker: float = Field(default=0.0, ge=0, le=16)

    @property
    def fewest_workers(self) -> int:
        """The least number of ranks that the planner may choose."""
        return self.num_workers if self.min_workers is None else self.min_workers

    @field_validator("min_workers")
    @classmethod
    def _check_range(cls, value: int | None, info: ValidationInfo) -> int | None:
        most = info.data.get("num_workers")
        if value is not None and most is not None and value > most:
            raise ValueError(f"give at most num_workers, which is {most}, or leave it out for exactly that many")
        return value

    @field_validator("gpus_per_worker")
    @classmethod
    def _check_gpus(cls, value: float, info: ValidationInfo) -> float:
        """Part of a GPU is for one rank alone: two ranks that share one would overrun its memory, and nccl refuses."""
        if value % 1 and (value > 1 or info.data.get("num_workers", 1) > 1):
            raise ValueError("give whole GPUs; part of one (below 1) is for num_workers 1")
        return value


_TEN_YEARS_S = 315_360_000.0  # for who wants no limit; the most that clocks and databases of all kinds can add


class LimitsSpec(Frozen):
    """When to give up."""

    max_runtime_s: float = Field(default=86_400.0, gt=0, le=_TEN_YEARS_S)
    max_restarts: int = Field(default=2, ge=0, le=100)
    max_rank_silence_s: float = Field(default=20.0, ge=2, le=3600, description="how long ranks wait for a silent one")


class JobSpec(TrainSpec):
    """A whole job as submitted."""

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$",
        description="letters, digits, spaces and . _ - after a first letter or digit",
    )
    resources: ResourcesSpec = ResourcesSpec()
    limits: LimitsSpec = LimitsSpec()

    @model_validator(mode="after")
    def _kernel_of_device(self) -> "JobSpec":
        """The one of its ranks: the rest (number type, what is installed) shows only there."""
        asked, gpus = self.training.attention_kernel, self.resources.gpus_per_worker
        if asked in ("triton", "flex") and not gpus:
            raise ValueError(f"training.attention_kernel {asked} runs on GPUs; ask for resources.gpus_per_worker 1")
        if asked == "native" and gpus:
            raise ValueError("training.attention_kernel native runs on CPUs; leave out resources.gpus_per_worker")
        return self

    def train_spec(self) -> TrainSpec:
        """The part that the ranks need."""
        return TrainSpec(**{name: getattr(self, name) for name in TrainSpec.model_fields})
