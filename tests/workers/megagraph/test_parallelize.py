"""What a plan asks of the model is applied; what this runtime cannot run is refused before anything runs."""

from dataclasses import replace
from typing import Any

import pytest
from torch.utils.checkpoint import checkpoint

from planner.errors import PlanInvalidError
from planner.plan import Action, MegaGraphPlan, Partition, describe_partition
from tests.distributed.equality import Case, build, plan_of, spread
from tests.distributed.equality.models import MODELS, many_graphs
from tests.distributed.odd_graphs import build_graph, odd_set
from workers.data.partition import NodeCuts
from workers.megagraph.parallelize import check_partition, check_runnable
from workers.megagraph.pipeline_parallel import own_parameters
from workers.ops.biased_attention import LocalExchange

CASE = Case(odd_set())


def test_one_rank_keeps_the_plain_model() -> None:
    model = build(CASE)
    spread(CASE, rank=0, model=model, plan=plan_of(CASE))
    assert all(isinstance(block.attention.exchange, LocalExchange) for block in model.blocks)
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_parameters_keep_their_names(schedule: str) -> None:
    case = replace(CASE, schedule=schedule, recompute=("block.0", "head"))
    model = build(case)
    names = [name for name, _ in model.named_parameters()]
    spread(case, rank=0, model=model, plan=plan_of(case))
    assert [name for name, _ in model.named_parameters()] == names
    assert list(own_parameters(model)) == names


def test_only_the_named_units_recompute() -> None:
    model = build(CASE)
    case = replace(CASE, recompute=("block.1",))
    spread(case, rank=0, model=model, plan=plan_of(case))
    wrapped = [name for name, unit in model.units().items() if getattr(unit.forward, "func", None) is checkpoint]
    assert wrapped == ["block.1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sharded": ("block.7",)}, "sharded names units that the model has not"),
        ({"bias": "per_stage"}, "for models with edge paths"),
        ({"recompute": ("block.7",)}, "block.7"),
        ({"actions": ((Action(0, "F", 0),),)}, "never runs B of micro-batch 0"),
    ],
)
def test_what_does_not_run_here_is_refused(change: dict[str, Any], message: str) -> None:
    plan = MegaGraphPlan.model_validate(plan_of(CASE).model_dump() | change)
    with pytest.raises(PlanInvalidError, match=message):
        check_runnable(plan, units=CASE.spec.units)


@pytest.mark.parametrize("partition", [Partition(), Partition(order="random"), Partition(balance="edges")])
def test_a_cut_of_other_graphs_is_refused(partition: Partition) -> None:
    one, other = (
        NodeCuts([build_graph(num_nodes, [(0, 1), (1, 2)], seed=0)], partition=partition, num_parts=2)
        for num_nodes in (20, 21)
    )
    plan = plan_of(CASE).model_copy(update={"partition": one.describe()})
    check_partition(plan, cuts=one)
    check_partition(plan_of(CASE), cuts=other)  # a plan without a fingerprint is for any
    with pytest.raises(PlanInvalidError, match="cut otherwise"):
        check_partition(plan, cuts=other)


def test_planner_and_runtime_agree_on_the_fingerprint_of_natural_shards() -> None:
    cuts = NodeCuts(CASE.dataset.graphs, num_parts=3)
    assert cuts.describe() == describe_partition((graph.num_nodes for graph in CASE.dataset.graphs), cp_degree=3)


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ((("features", "head"),), "in order; found .'features', 'head'."),
        ((CASE.spec.units, CASE.spec.units), "in order"),
        ((CASE.spec.units, ()), r"stages \[1\] have none"),
    ],
)
def test_stages_hold_the_units_of_the_model_once_and_in_order(units: tuple[tuple[str, ...], ...], message: str) -> None:
    plan = plan_of(CASE)
    stages = tuple(plan.stages[0].model_copy(update={"units": part}) for part in units)
    with pytest.raises(PlanInvalidError, match=message):
        check_runnable(plan.model_copy(update={"stages": stages}), units=CASE.spec.units)


def test_replicas_that_count_rows_together_run_one_list() -> None:
    model = MODELS["gt with batch norm"]
    case = Case(many_graphs(model), spec=model.spec, dp=2, num_micro_batches=2)
    turned = tuple(Action(0, kind, m) for kind in "FB" for m in (1, 0))
    plan = MegaGraphPlan.model_validate(plan_of(case).model_dump() | {"actions": (plan_of(case).actions[0], turned)})
    check_runnable(plan, units=model.spec.units)
    with pytest.raises(PlanInvalidError, match=r"count the rows of a micro-batch for .* ranks 0 and 1 differ"):
        spread(case, rank=0, model=build(case), plan=plan)
