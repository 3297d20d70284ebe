"""What a plan asks beside a layout changes no result: schedules, recomputation, node orders, clipping, kept biases."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from planner.plan import Partition
from tests.distributed.equality import SPEC, Case, Judge, Width, run_parallel
from tests.distributed.equality.models import MODELS, a_single_graph, as_wholes, many_graphs, own_model
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph, random_edges
from tests.kit.gloo_pool import GlooPool, RanksFailedError

# the reference is asked once per set
ODD, ONE, TWO_NODES = odd_set(), one_graph(), build_set([build_graph(2, [(0, 1)], seed=1), build_graph(1, [], seed=2)])
DROPPED = {"dropout": 0.4, "input_dropout": 0.3}
TWELVE_HEADS = SPEC.model_copy(update={"hidden_size": 24, "num_heads": 12, **DROPPED})
ALL_WAYS, EDGES, SUMS = own_model("attention", "edges", "sums"), own_model("edges", "sums"), own_model("sums")
SHARED_HEADS = [("ulysses", 4), ("ulysses_ring", 2)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_every_schedule_computes_the_same(judge: Judge, schedule: str) -> None:
    stages = (Width(3), Width(2, cp=2), Width(1))
    judge.check(Case(ODD, stages=stages, schedule=schedule, num_micro_batches=5, steps=3))


@pytest.mark.parametrize("name", MODELS)
def test_weight_gradients_may_be_put_off_in_every_model(judge: Judge, name: str) -> None:
    model = MODELS[name]
    units, exchange = len(model.spec.units), model.exchanges[0]
    stages = (Width(units - 1, cp=2, exchange=exchange), Width(1, dp=2))
    case = Case(many_graphs(model), stages=stages, schedule="zero_bubble", num_micro_batches=3, spec=model.spec)
    judge.check(case)


@pytest.mark.parametrize("degrees", [{}, {"cp": 2}, {"dp": 2}], ids=str)
def test_ranks_that_serve_two_stages_each_compute_the_same(judge: Judge, degrees: dict[str, int]) -> None:
    stages = tuple(Width(units, **degrees) for units in (3, 1, 1, 1))
    judge.check(Case(ODD, stages=stages, stages_per_group=2, num_micro_batches=3, steps=3))


def test_stages_that_share_all_ranks_hand_over_to_themselves(judge: Judge) -> None:
    stages = (Width(4, cp=2), Width(2, dp=2))
    judge.check(Case(ODD, stages=stages, stages_per_group=2, num_micro_batches=2, steps=3))


@pytest.mark.parametrize("units", [("block.0",), TWELVE_HEADS.units], ids=len)
@pytest.mark.parametrize("exchange", ["ring", "ulysses"])
def test_recomputation_changes_no_bit(judge: Judge, units: tuple[str, ...], exchange: str) -> None:
    ulysses = 2 if exchange == "ulysses" else 1
    case = Case(ODD, cp=2, dp=2, exchange=exchange, ulysses=ulysses, spec=TWELVE_HEADS, steps=2)
    kept, recomputed = judge.check(case), judge.check(replace(case, recompute=units))
    for left, right in zip(kept, recomputed, strict=True):
        assert left.losses == right.losses
        for name, parameter in left.parameters.items():
            assert torch.equal(parameter, right.parameters[name]), name


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_units_of_stages_recompute(judge: Judge, schedule: str) -> None:
    stages = (Width(4), Width(2, cp=2))
    case = Case(ODD, stages=stages, schedule=schedule, spec=TWELVE_HEADS, num_micro_batches=3, steps=3)
    judge.check(replace(case, recompute=TWELVE_HEADS.units))


@pytest.mark.parametrize(
    "name", ["gt with batch norm", "graphgps with batch norm and gine", "custom without attention"]
)
def test_blocks_that_recompute_run_their_exchange_again_and_learn_statistics_once(judge: Judge, name: str) -> None:
    model = MODELS[name]
    case = Case(many_graphs(model), dp=2, cp=2, exchange=model.exchanges[0], spec=model.spec, steps=3)
    judge.check(replace(case, recompute=("block.0", "block.1")))


def test_micro_batches_without_rows_teach_batch_norm_nothing(judge: Judge) -> None:
    model = MODELS["gt with batch norm"]
    dataset = replace(many_graphs(model), graphs=many_graphs(model).graphs[:4:3])
    judge.check(Case(dataset, cp=2, dp=2, exchange="halo", spec=model.spec, num_micro_batches=4, steps=3))


@pytest.mark.parametrize("layout", [{"cp": 2, "dp": 2}, {"stages": (Width(5, cp=2), Width(2, dp=2))}], ids=str)
def test_a_bias_that_is_kept_for_all_blocks_of_a_stage_is_the_one_that_is_rebuilt(
    judge: Judge, layout: dict[str, Any]
) -> None:
    model = MODELS["graphormer with edge paths"]
    partition = Partition(order="random")
    case = Case(many_graphs(model), spec=model.spec, num_micro_batches=2, steps=3, partition=partition, **layout)
    judge.check(replace(case, bias="per_stage"))


@pytest.mark.parametrize("order", ["metis", "greedy", "random"])
@pytest.mark.parametrize("balance", ["rows", "edges"])
def test_nodes_may_lie_in_any_order_on_shards_of_any_size(judge: Judge, order: str, balance: str) -> None:
    partition = Partition(order=order, balance=balance)
    judge.check(Case(ODD, cp=3, partition=partition, spec=ALL_WAYS))
    judge.check(Case(ONE, cp=4, exchange="ulysses_ring", ulysses=2, partition=partition, spec=ALL_WAYS, steps=2))


@pytest.mark.parametrize("name", ["graphormer with edge paths", "exphormer", "nagphormer", "gt"])
def test_all_that_is_known_of_rows_follows_the_cut(judge: Judge, name: str) -> None:
    model, partition = MODELS[name], Partition(order="random")
    judge.check(Case(many_graphs(model), cp=3, exchange=model.exchanges[0], partition=partition, spec=model.spec))


def test_stages_of_unlike_width_and_exchange_cut_the_same_order(judge: Judge) -> None:
    stages = (Width(3, cp=2, exchange="ulysses", ulysses=2), Width(3, cp=2))
    judge.check(Case(ODD, stages=stages, partition=Partition(order="random"), num_micro_batches=2))
    edges = (Width(2, cp=3, exchange="halo"), Width(2, cp=1))
    judge.check(Case(ODD, stages=edges, spec=EDGES, partition=Partition(order="metis", balance="edges")))


@pytest.mark.parametrize(
    ("exchange", "ulysses", "spec"),
    [("ring", 1, ALL_WAYS), *((*way, ALL_WAYS) for way in SHARED_HEADS), ("halo", 1, EDGES), ("reduce", 1, SUMS)],
)
def test_more_ranks_than_nodes_leave_empty_shards(judge: Judge, exchange: str, ulysses: int, spec: Any) -> None:
    judge.check(Case(TWO_NODES, cp=4, exchange=exchange, ulysses=ulysses, spec=spec, steps=2))


def test_fewer_nodes_than_ranks_in_stages(judge: Judge) -> None:
    judge.check(Case(TWO_NODES, stages=(Width(4, cp=2), Width(2, dp=2)), num_micro_batches=2, steps=2))


def test_more_replicas_than_graphs_leave_idle_ones(judge: Judge) -> None:
    judge.check(Case(one_graph(num_nodes=9), dp=3, steps=2))


@pytest.mark.parametrize("name", MODELS)
def test_sharded_units_of_idle_replicas_sum_the_same_gradients(judge: Judge, name: str) -> None:
    model = MODELS[name]
    dataset = a_single_graph() if model.level == "node" else as_wholes(a_single_graph(), validated=())
    judge.check(Case(dataset, dp=2, spec=model.spec, sharded=model.spec.units))


def test_batches_may_be_smaller_than_the_set(judge: Judge) -> None:
    judge.check(Case(ODD, cp=2, dp=2, num_micro_batches=2, batch_size=3, steps=5))


@pytest.mark.parametrize(
    "layout",
    [
        {"cp": 2},
        {"dp": 3},
        {"cp": 2, "dp": 2, "sharded": SPEC.units, "shard_degree": 2},
        {"stages": (Width(4, cp=2), Width(2))},
        {"stages": (Width(4), Width(2, dp=3)), "sharded": ("head",)},
    ],
    ids=["cp", "dp", "two levels", "stages that share the distance table", "the wider stage sharded"],
)
def test_gradients_are_clipped_by_the_norm_of_the_whole_model(judge: Judge, layout: dict[str, Any]) -> None:
    case = Case(ODD, num_micro_batches=2, steps=3, clip_norm=0.01, **layout)
    judge.check(case)
    gradients = judge.expected(case).gradients
    assert float(torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()) == pytest.approx(
        0.01, rel=1e-3
    )


@pytest.mark.parametrize("sharded", [(), ("features", "degree", "head")], ids=["whole", "tables sharded"])
def test_all_ranks_hold_the_same_bits_after_training(pool: GlooPool, sharded: tuple[str, ...]) -> None:
    case = Case(ODD, cp=2, dp=2, dtype=torch.float32, steps=3, sharded=sharded)
    first, *others = pool.run(run_parallel, case, world_size=4)
    for other in others:
        assert other.losses == first.losses
        for name, parameter in first.parameters.items():
            assert torch.equal(parameter, other.parameters[name]), name


@pytest.mark.parametrize(
    ("exchange", "ulysses", "spec"),
    [("ring", 1, TWELVE_HEADS), *((*way, TWELVE_HEADS) for way in SHARED_HEADS), ("halo", 1, EDGES)],
)
def test_float32_stays_near_on_a_graph_of_many_pairs(judge: Judge, exchange: str, ulysses: int, spec: Any) -> None:
    dataset = build_set([build_graph(600, random_edges(600, 1500, seed=3), seed=4)])
    judge.check_float32(Case(dataset, cp=4, exchange=exchange, ulysses=ulysses, spec=spec))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(ODD, cp=3, exchange="ulysses", ulysses=3), "2 heads cannot be shared by ulysses_degree 3"),
        (Case(ODD, cp=2, exchange="halo"), "'halo' carries no dense attention.*ring, ulysses or ulysses_ring"),
        (Case(ODD, cp=2, exchange="reduce", spec=EDGES), "'reduce' carries no edges.*ulysses_ring or halo"),
    ],
)
def test_an_exchange_that_does_not_fit_the_model_is_refused_on_every_rank(
    pool: GlooPool, case: Case, message: str
) -> None:
    with pytest.raises(RanksFailedError, match=message) as failed:
        pool.run(run_parallel, case, world_size=case.world_size)
    assert len(failed.value.errors) == case.world_size
