"""Gradients are clipped by one norm of the whole model, however its parameters lie on the ranks."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.distributed.equality import Case, Width, build, plan_of, spread
from tests.distributed.odd_graphs import odd_set
from tests.kit.gloo_pool import GlooPool
from tests.kit.objectives import CROSS_ENTROPY
from workers.megagraph.pipeline_parallel import own_parameters
from workers.megagraph.training_step import run_step
from workers.spec import TrainingSpec
from workers.training.optimizer import build_optimizer, weight_matrices

CLIPPED = TrainingSpec(clip_norm=0.01, learning_rate=0.1)


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def clip(rank: int, world_size: int, case: Case) -> tuple[float, dict[str, Tensor]]:
    """The norm after one clipped step, and this rank's clipped gradients."""
    model, plan = build(case), plan_of(case)
    parallel, dealer = spread(case, rank=rank, model=model, plan=plan)
    optimizer = build_optimizer(
        model,
        spec=CLIPPED,
        decayed=weight_matrices,
        gradient_norm=lambda: parallel.gradients.norm(over=parallel.world),
    )
    run_step(
        parallel,
        optimizer=optimizer,
        loss=CROSS_ENTROPY,
        share=dealer.epoch(1)[0],
        actions=plan.actions[rank],
        step=1,
        draw=1,
    )
    norm = float(parallel.gradients.norm(over=parallel.world))
    gradients = {name: parameter.grad.clone() for name, parameter in own_parameters(model).items()}
    parallel.close()
    return norm, gradients


@pytest.mark.parametrize(
    "case",
    [
        Case(odd_set(), cp=2),
        Case(odd_set(), dp=3),
        Case(odd_set(), stages=(Width(4, cp=2), Width(2)), num_micro_batches=2),
    ],
    ids=["cp", "dp", "stages that share the distance table"],
)
def test_every_rank_clips_as_one_process_would(pool: GlooPool, case: Case) -> None:
    norm, expected = pool.run(clip, Case(odd_set()), world_size=1)[0]
    assert norm == pytest.approx(CLIPPED.clip_norm, rel=1e-3)
    whole = torch.cat([gradient.flatten() for gradient in expected.values()])
    assert float(whole.norm()) == pytest.approx(norm)
    for found, gradients in pool.run(clip, case, world_size=case.world_size):
        assert found == pytest.approx(norm, rel=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-12)
