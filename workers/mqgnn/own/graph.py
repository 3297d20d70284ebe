"""What the Trainer asks of a graph and a module together; ``plain`` and ``typed`` answer for PyG's kinds of data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from workers.comm.axis import Axis
from workers.data.graph import GraphDataset, Task
from workers.model_specs.sampled import SamplerName
from workers.mqgnn.engine import Forward
from workers.mqgnn.evaluation import Evaluator
from workers.mqgnn.own.forms import Form
from workers.mqgnn.seed_order import SeedOrder
from workers.mqgnn.stage import Stage
from workers.spec import LinkSpec


@dataclass(frozen=True)
class OwnSettings:
    """What a user asks of the Trainer besides module and data; see ``workers.mqgnn.trainer.Trainer``."""

    task: Task | None
    links: LinkSpec | None
    node_embedding_size: int
    fanouts: tuple[int, ...]
    sampler: SamplerName
    replace: bool
    num_sampling_workers: int
    device: torch.device
    dtype: torch.dtype
    seed: int


class OwnGraph(Protocol):
    """``dataset`` holds the nodes that are predicted, ``form`` and ``by_calls`` say how a module runs.

    ``num_rows`` are the nodes of all kinds: rows of a table that is learned for them.
    """

    dataset: GraphDataset
    form: Form
    by_calls: bool
    num_rows: int
    labels: Tensor  # of all nodes as the user has them, a row for each

    def outputs_width(self, model: nn.Module) -> int:
        """Run ``model`` once: what lazy modules make is made. Returns the width of its outputs."""

    def judge(self, model: nn.Module) -> None:
        """Find out how ``model`` runs. Deterministic in its weights."""

    def stages(self, order: SeedOrder, *, rank: int) -> Sequence[Stage]:
        """From tasks to mini-batches of ``rank``."""

    def forward(self, *, rank: int) -> Forward:
        """How the module runs on them."""

    def evaluator(self, model: nn.Module, *, axis: Axis) -> Evaluator:
        """Scores and outputs of all nodes by ``model``, together with the replicas on ``axis``."""
