"""What one rank is given to train, and what it says on the way. No environment, no Ray, no service in here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from planner.plan import MegaGraphPlan, MQGNNPlan
from workers.data.paths import DataPaths
from workers.spec import TrainSpec
from workers.training.folder import Folder
from workers.training.remote_calls import RemoteCalls
from workers.watch.progress import GiveUp, Progress


@dataclass(frozen=True)
class Report:
    """Progress of one rank after optimiser step ``step`` (1-based) of ``total_steps``; ``epoch`` is 1-based too."""

    step: int
    total_steps: int
    epoch: int
    values: Mapping[str, float] = field(default_factory=dict)
    checkpoint: str | None = None


@dataclass(frozen=True)
class RankRun:
    """Everything that one rank needs. ``report`` is collective: all ranks call it equally often, in the same order.

    With ``world_size > 1`` the default process group exists (nccl on GPUs, gloo on CPUs); alone there may be none.
    ``job_dir`` holds ``checkpoints/``, ``export/`` and ``predictions/``; ``model_from`` is the export that the task
    uses, None to train. The other ranks reach this one at ``address`` and wait ``max_silence_s`` for it at most;
    ``progress`` is what they hear of it. ``give_up`` ends the run where the thread that trains cannot; who calls a
    runtime directly has none. ``samplers`` make the mini-batches where the plan has actors do so.

    Replicas that outlive each other may be given a ``store`` (empty when the run began, and living as long) in place of
    a default process group: then one that is started while the others train is let in by them, and ``report`` is not
    collective.
    """

    spec: TrainSpec
    plan: MegaGraphPlan | MQGNNPlan
    rank: int
    world_size: int
    device: torch.device
    data: DataPaths
    job_dir: Folder
    report: Callable[[Report], None]
    model_from: Folder | None = None
    address: str = "127.0.0.1"
    max_silence_s: float = 20.0
    progress: Progress = field(default_factory=Progress)
    store: dist.Store | None = None
    give_up: GiveUp | None = None
    samplers: RemoteCalls | None = None

    @property
    def max_stage_silence_s(self) -> float:
        """How long a stage may hang: less than a rank, so that the stage is named before its rank is."""
        return self.max_silence_s / 2
