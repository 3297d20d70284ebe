"""Every transformer over cut rows computes what it computes in one process, by the exchange that fits it."""

from collections.abc import Iterator

import pytest

from tests.distributed.claims import check_float64
from tests.distributed.equality import Case
from tests.distributed.odd_graphs import odd_set, one_graph
from tests.kit.gloo_pool import GlooPool
from workers.model_specs import GraphGPSSpec, GTSpec, SGFormerSpec, TransformerSpec

SIZES = {"hidden_size": 8, "dropout": 0.3, "input_dropout": 0.2}
FITTING: list[tuple[TransformerSpec, str]] = [
    (SGFormerSpec(**SIZES), "halo"),
    (GTSpec(**SIZES, laplacian_size=0, norm="layer"), "halo"),
    (GTSpec(**SIZES, laplacian_size=0, norm="batch"), "halo"),
    (GraphGPSSpec(**SIZES, norm="layer"), "ring"),
    (GraphGPSSpec(**SIZES, norm="layer", message_passing="gine"), "ring"),
    (GraphGPSSpec(**SIZES, norm="batch"), "ring"),
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
