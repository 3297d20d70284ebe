"""What a plan asks of the model is applied; what this runtime cannot run is refused before anything runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from planner.errors import PlanInvalidError
from planner.plan import Action, MegaGraphPlan, describe_partition
from tests.distributed.equality import Case, build, plan_of
from tests.distributed.odd_graphs import odd_set
from workers.comm.axis import Axis
from workers.comm.mesh import Mesh
from workers.comm.ring import RingExchange
from workers.megagraph.executor import play
from workers.megagraph.parallelize import check_partition, check_runnable, parallelize
from workers.ops.biased_attention import LocalExchange

CASE = Case(odd_set())


def mesh(*, cp: int) -> Mesh:
    alone, line = Axis((0,), 0), Axis(tuple(range(cp)), 0)
    return Mesh(world=line, dp=alone, cp=line)


def test_one_rank_keeps_the_plain_model() -> None:
    model = build(CASE)
    parallelize(model, plan=plan_of(CASE), mesh=mesh(cp=1))
    assert all(isinstance(block.attention.exchange, LocalExchange) for block in model.blocks)


def test_several_cp_ranks_get_the_ring_and_parameters_keep_their_names() -> None:
    case = replace(CASE, cp=2, recompute=("block.0", "head"))
    model = build(case)
    names = [name for name, _ in model.named_parameters()]
    parallelize(model, plan=plan_of(case), mesh=mesh(cp=2))
    assert all(isinstance(block.attention.exchange, RingExchange) for block in model.blocks)
    assert [name for name, _ in model.named_parameters()] == names


def test_only_the_named_units_recompute() -> None:
    model = build(CASE)
    parallelize(model, plan=plan_of(replace(CASE, recompute=("block.1",))), mesh=mesh(cp=1))
    wrapped = [name for name, unit in model.units().items() if getattr(unit.forward, "func", None) is checkpoint]
    assert wrapped == ["block.1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sharded": ("head",)}, "parameters whole on every rank"),
        ({"bias": "per_stage"}, "rebuilds the bias"),
        ({"recompute": ("block.7",)}, "block.7"),
        ({"actions": ((Action(0, "F", 0),),)}, "never runs B of micro-batch 0"),
    ],
)
def test_what_does_not_run_here_is_refused(change: dict[str, Any], message: str) -> None:
    plan = MegaGraphPlan.model_validate(plan_of(CASE).model_dump() | change)
    with pytest.raises(PlanInvalidError, match=message):
        check_runnable(plan, units=CASE.spec.units)


def test_a_cut_of_other_graphs_is_refused() -> None:
    plan = plan_of(CASE).model_copy(update={"partition": describe_partition((10, 20), cp_degree=1)})
    check_partition(plan, graph_sizes=(20, 10))
    check_partition(plan_of(CASE), graph_sizes=(20, 11))  # a plan without a fingerprint is for any
    with pytest.raises(PlanInvalidError, match="cut otherwise"):
        check_partition(plan, graph_sizes=(20, 11))


def test_a_stage_without_all_units_is_refused() -> None:
    plan = plan_of(CASE)
    stage = plan.stages[0].model_copy(update={"units": ("features", "head")})
    with pytest.raises(PlanInvalidError, match="in order"):
        check_runnable(plan.model_copy(update={"stages": (stage,)}), units=CASE.spec.units)


def test_the_executor_plays_the_actions_in_their_order_and_frees_each_loss() -> None:
    played: list[str] = []

    def forward(micro_batch: int) -> torch.Tensor:
        played.append(f"F{micro_batch}")
        loss = torch.tensor(float(micro_batch + 1), requires_grad=True)
        loss.register_hook(lambda _: played.append(f"B{micro_batch}"))
        return loss * 1.0

    actions = [Action(0, "F", 1), Action(0, "F", 0), Action(0, "B", 0), Action(0, "B", 1)]
    assert float(play(actions, forward=forward)) == 3.0
    assert played == ["F1", "F0", "B0", "B1"]
