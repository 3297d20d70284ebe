"""Every transformer over cut rows computes what it computes in one process, by the exchange that fits it."""

from collections.abc import Iterator

import pytest
import torch

from planner.plan import Partition
from tests.distributed.claims import check_float64
from tests.distributed.equality import Case, Width, run_parallel
from tests.distributed.odd_graphs import odd_set, one_graph
from tests.kit.gloo_pool import GlooPool
from workers.model_specs import (
    ExphormerSpec,
    GraphGPSSpec,
    GraphormerSpec,
    GTSpec,
    NAGphormerSpec,
    SGFormerSpec,
    TransformerSpec,
)

SIZES = {"hidden_size": 8, "dropout": 0.3, "input_dropout": 0.2}
FITTING: list[tuple[TransformerSpec, str]] = [
    (SGFormerSpec(**SIZES), "halo"),
    (GTSpec(**SIZES, laplacian_size=0, norm="layer"), "halo"),
    (GTSpec(**SIZES, laplacian_size=0, norm="batch"), "halo"),
    (GraphGPSSpec(**SIZES, norm="layer"), "ring"),
    (GraphGPSSpec(**SIZES, norm="layer", message_passing="gine"), "ring"),
    (GraphGPSSpec(**SIZES, norm="batch"), "ring"),
    (GraphGPSSpec(**SIZES, norm="layer", walk_length=3), "ring"),
    (GTSpec(**SIZES, laplacian_size=2, norm="layer"), "halo"),
    (ExphormerSpec(**SIZES, norm="layer"), "halo"),
    (ExphormerSpec(**SIZES, norm="batch", num_global=2, laplacian_size=2), "halo"),
    (NAGphormerSpec(**SIZES), "reduce"),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(4) as pool:
        yield pool


@pytest.mark.parametrize("cp", [2, 4])
@pytest.mark.parametrize(("spec", "exchange"), FITTING, ids=lambda part: getattr(part, "name", part))
def test_cut_rows_equal_one_process(pool: GlooPool, spec: TransformerSpec, exchange: str, cp: int) -> None:
    check_float64(pool, Case(one_graph(), cp=cp, exchange=exchange, spec=spec, steps=3))
    check_float64(pool, Case(odd_set(), cp=cp, exchange=exchange, spec=spec))


def test_statistics_are_learned_once_where_blocks_are_recomputed_on_replicas(pool: GlooPool) -> None:
    spec = GTSpec(**SIZES, laplacian_size=2, norm="batch")
    case = Case(odd_set(), dp=2, cp=2, exchange="halo", spec=spec, steps=3, recompute=("block.0", "block.1"))
    check_float64(pool, case)


def test_rows_of_many_tokens_move_between_stages(pool: GlooPool) -> None:
    stages = (Width(units=2), Width(units=2, cp=2, exchange="reduce"))
    check_float64(pool, Case(odd_set(), stages=stages, num_micro_batches=2, spec=NAGphormerSpec(**SIZES)))


@pytest.mark.parametrize("spec", [ExphormerSpec(**SIZES, walk_length=2), NAGphormerSpec(**SIZES)])
def test_all_that_is_known_of_rows_follows_the_cut(pool: GlooPool, spec: TransformerSpec) -> None:
    partition = Partition(order="random")
    check_float64(pool, Case(one_graph(), cp=2, exchange="halo", partition=partition, spec=spec))


def test_edge_paths_follow_the_cut(pool: GlooPool) -> None:
    spec = GraphormerSpec(**SIZES, edge_types=1)
    whole, *_ = pool.run(run_parallel, Case(one_graph(), spec=spec), world_size=1)
    for bias in ("rebuild", "per_stage"):
        case = Case(one_graph(), cp=2, partition=Partition(order="random"), spec=spec, bias=bias)
        cut, _ = pool.run(run_parallel, case, world_size=2)
        assert cut.losses == pytest.approx(whole.losses, rel=1e-10)
        for name, exact in whole.gradients.items():
            torch.testing.assert_close(cut.gradients[name], exact, rtol=1e-8, atol=1e-10)
