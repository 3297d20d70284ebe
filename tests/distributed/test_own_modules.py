"""Modules of a user's own: right on any ranks where they keep to what a unit must do, refused by name where not."""

import pytest
import torch

from tests.distributed.equality import Case, Judge, Width, build, plan_of, run_parallel, spread
from tests.distributed.own_modules import UNITS, own_case
from tests.kit.gloo_pool import GlooPool, RanksFailedError
from tests.kit.objectives import CROSS_ENTROPY
from workers.errors import ModelInvalidError
from workers.megagraph.training_step import run_step
from workers.spec import TrainingSpec
from workers.training.optimizer import build_optimizer

LAYOUTS = {
    "shards": {"cp": 2},
    "replicas": {"dp": 2},
    "stages": {"stages": (Width(2), Width(2)), "num_micro_batches": 2},
    "sharded": {"dp": 2, "sharded": UNITS},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("wide", r"'block\.0' must give a tensor \[\d+, 8\] of float64, the .*; it gave a tensor of shape \[\d+, 16\]"),
        ("fewer rows", r"'block\.0' must give a tensor \[10, 8\].*it gave a tensor of shape \[9, 8\]"),
        ("nothing", r"'block\.0' must .* it gave NoneType"),
        ("pair", r"'block\.0' must .* it gave tuple"),
        ("half", r"'block\.0' must .* it gave a tensor of float16"),
        ("classes", r"'head' must give a tensor \[\d+, 3\].* predictions .*; it gave a tensor of shape \[\d+, 4\]"),
        ("pooled", r"'head' must give a tensor \[10, 3\].* predictions .*; it gave a tensor of shape \[1, 3\]"),
    ],
)
def test_a_unit_that_gives_something_else_is_named(pool: GlooPool, kind: str, said: str, layout: str) -> None:
    if kind in ("fewer rows", "pooled") and layout == "shards":
        said = said.replace("10", "5").replace("9", "4")
    with pytest.raises(RanksFailedError, match=said) as failed:
        pool.run(run_parallel, own_case(kind, **LAYOUTS[layout]), world_size=2)
    assert ModelInvalidError in map(type, failed.value.errors.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["batch norm", "frozen", "unused", "detached"])
def test_what_a_unit_may_do_is_the_same_on_any_ranks(judge: Judge, kind: str, layout: str) -> None:
    judge.check_gradients(own_case(kind, **LAYOUTS[layout]))


def test_torchs_batch_norm_counts_the_rows_of_all_replicas_when_it_is_recomputed(judge: Judge) -> None:
    judge.check_gradients(own_case("batch norm", dp=2, cp=2, recompute=("block.0",)))


def test_torchs_dropout_drops_the_same_when_a_unit_is_recomputed(pool: GlooPool) -> None:
    kept, again = (
        pool.run(run_parallel, own_case("torch dropout", dp=2, steps=3, recompute=units), world_size=2)
        for units in ((), ("block.0",))
    )
    for left, right in zip(kept, again, strict=True):
        assert left.losses == right.losses
        assert all(torch.equal(value, right.parameters[name]) for name, value in left.parameters.items())


def test_first_weights_that_no_seed_decides_are_those_of_the_first_rank(pool: GlooPool) -> None:
    pool.run(_build_alone, own_case("unseeded"), world_size=1)  # so that the ranks have built different numbers of them
    first, second = pool.run(run_parallel, own_case("unseeded", dp=2, steps=2), world_size=2)
    assert first.losses == second.losses
    for name, value in first.parameters.items():
        assert torch.equal(value, second.parameters[name]), name


def _build_alone(rank: int, world_size: int, case: Case) -> None:
    build(case)


@pytest.mark.parametrize("ranks", [1, 2])
def test_weight_decay_leaves_frozen_parameters_alone_and_pulls_unused_ones_on_any_ranks(
    pool: GlooPool, ranks: int
) -> None:
    for kind, name, wanted in (("frozen", "module.block.0.layer.weight", 1.0), ("unused", "module.block.0.never", 0.9)):
        for before, after in pool.run(_decay, own_case(kind, dp=ranks), name, world_size=ranks):
            torch.testing.assert_close(after, wanted * before)


def _decay(rank: int, world_size: int, case: Case, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameter ``name`` before and after a step of AdamW that takes a tenth of every parameter."""
    model = build(case)
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan_of(case))
    parameter = dict(model.named_parameters())[name]
    before = parameter.detach().clone()
    optimizer = build_optimizer(
        model,
        spec=TrainingSpec(optimizer="adamw", learning_rate=0.1, weight_decay=1.0),
        decayed=lambda model: model.parameters(),
    )
    (share,) = dealer.epoch(1)
    actions = plan_of(case).actions[rank]
    run_step(parallel, optimizer=optimizer, loss=CROSS_ENTROPY, share=share, actions=actions, step=1, draw=1)
    parallel.close()
    return before, parameter.detach()
