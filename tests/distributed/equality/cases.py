"""A case of equality: what is trained, and the plan that spreads it. One table cell, said in a few words."""

from dataclasses import dataclass

import torch

from planner.plan import MegaGraphPlan, Partition, Stage
from planner.schedule import (
    actions_by_rank,
    gpipe_actions,
    interleaved_actions,
    one_f_one_b_actions,
    zero_bubble_actions,
)
from workers.data.graph import GraphDataset
from workers.data.partition import NATURAL
from workers.model_specs.by_name import TransformerSpec
from workers.spec import GraphormerSpec

SPEC = GraphormerSpec(
    num_layers=2, hidden_size=8, num_heads=2, max_distance=3, ffn_ratio=1.5, dropout=0.0, input_dropout=0.0
)
SCHEDULES = {"gpipe": gpipe_actions, "1f1b": one_f_one_b_actions, "zero_bubble": zero_bubble_actions}


@dataclass(frozen=True)
class Width:
    """One stage: how many units it takes, its degrees, and its exchange, by default the ring."""

    units: int
    dp: int = 1
    cp: int = 1
    exchange: str = "ring"
    ulysses: int = 1


@dataclass(frozen=True)
class Case:
    """What to train, and how it is spread. ``batch_size`` graphs per step; ``steps`` updates by Adam.

    ``cp`` x ``dp`` ranks hold the whole model, unless ``stages`` says what each stage holds; the groups of ranks then
    serve ``stages_per_group`` of them in turn.
    """

    dataset: GraphDataset
    cp: int = 1
    dp: int = 1
    exchange: str = "ring"
    ulysses: int = 1
    partition: Partition = NATURAL
    stages: tuple[Width, ...] = ()
    stages_per_group: int = 1
    schedule: str = "1f1b"
    num_micro_batches: int = 1
    recompute: tuple[str, ...] = ()
    bias: str = "rebuild"
    sharded: tuple[str, ...] = ()
    shard_degree: int | None = None
    clip_norm: float | None = None
    spec: TransformerSpec = SPEC
    dtype: torch.dtype = torch.float64
    batch_size: int = 100
    steps: int = 1

    @property
    def widths(self) -> tuple[Width, ...]:
        return self.stages or (
            Width(len(self.spec.units), dp=self.dp, cp=self.cp, exchange=self.exchange, ulysses=self.ulysses),
        )

    @property
    def num_groups(self) -> int:
        return len(self.widths) // self.stages_per_group

    @property
    def world_size(self) -> int:
        return sum(width.dp * width.cp for width in self.widths[: self.num_groups])


def plan_of(case: Case) -> MegaGraphPlan:
    """The plan that ``case`` describes."""
    names = case.spec.units
    stages: list[Stage] = []
    for index, width in enumerate(case.widths):
        first = sum(other.dp * other.cp for other in case.widths[: index % case.num_groups])
        taken = sum(other.units for other in case.widths[:index])
        stages.append(
            Stage(
                units=names[taken : taken + width.units],
                ranks=tuple(range(first, first + width.dp * width.cp)),
                dp_degree=width.dp,
                cp_degree=width.cp,
                exchange=width.exchange if width.cp > 1 else "none",
                ulysses_degree=width.ulysses,
            )
        )
    if case.stages_per_group > 1:
        actions = interleaved_actions(
            num_groups=case.num_groups,
            stages_per_group=case.stages_per_group,
            num_micro_batches=case.num_micro_batches,
        )
    else:
        actions = SCHEDULES[case.schedule](num_stages=len(stages), num_micro_batches=case.num_micro_batches)
    return MegaGraphPlan(
        world_size=case.world_size,
        stages=tuple(stages),
        num_micro_batches=case.num_micro_batches,
        actions=actions_by_rank(stages, actions),
        recompute=case.recompute,
        bias=case.bias,
        sharded=case.sharded,
        shard_degree=case.shard_degree,
        partition=case.partition,
    )
