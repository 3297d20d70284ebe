"""Near pairs and dropped attention weights over ranks: the bits of the dense index, the masks of one process."""

from dataclasses import replace

import pytest
import torch

from planner.plan import Partition
from tests.distributed.equality import SPEC, Case, Outcome, compare, run_parallel
from tests.distributed.odd_graphs import build_graph, build_set, odd_set, one_graph
from tests.kit.gloo_pool import GlooPool
from workers.model_specs.transformers import GraphGPSSpec, GraphormerSpec

SPREADS = {
    "ring of 2": {"cp": 2},
    "ring of 4": {"cp": 4},
    "ulysses": {"cp": 2, "exchange": "ulysses", "ulysses": 2},
    "both": {"cp": 4, "exchange": "ulysses_ring", "ulysses": 2},
}
each_spread = pytest.mark.parametrize("spread", SPREADS.values(), ids=list(SPREADS))


def run(pool: GlooPool, case: Case) -> list[Outcome]:
    return pool.run(run_parallel, case, world_size=case.world_size)


def with_index(case: Case, index: str) -> Case:
    return replace(case, spec=case.spec.model_copy(update={"index": index}))


@each_spread
def test_near_pairs_train_to_the_bits_of_the_dense_index(pool: GlooPool, spread: dict[str, object]) -> None:
    spread = {**spread, "dtype": torch.float32}
    for case in (
        Case(odd_set(), **spread, steps=2),  # isolated nodes, self loops, shards without rows
        Case(one_graph(num_nodes=37), **spread, partition=Partition(order="metis")),
        Case(build_set([build_graph(2, [(0, 1)], seed=1)]), **spread),
    ):
        near, dense = (run(pool, with_index(case, index)) for index in ("near_pairs", "dense"))
        for ours, exact in zip(near, dense, strict=True):
            assert ours.losses == exact.losses
            assert all(torch.equal(ours.logits[graph], exact.logits[graph]) for graph in exact.logits)
            for name, parameter in exact.parameters.items():
                assert torch.equal(ours.gradients[name], exact.gradients[name]), name
                assert torch.equal(ours.parameters[name], parameter), name


DISTANCE = SPEC.model_copy(update={"attention_dropout": 0.4})
EDGE_PATHS = DISTANCE.model_copy(update={"edge_types": 1})
GPS = GraphGPSSpec(
    num_layers=2, hidden_size=8, num_heads=2, dropout=0.0, input_dropout=0.0, norm="layer", attention_dropout=0.4
)
DROPPING = {
    **{f"distance, {name}": (spread, DISTANCE) for name, spread in SPREADS.items()},
    "edge paths, both": (SPREADS["both"], EDGE_PATHS),
    "graphgps, both": (SPREADS["both"], GPS),
}


@pytest.mark.parametrize(("spread", "spec"), DROPPING.values(), ids=list(DROPPING))
def test_any_number_of_ranks_drops_the_attention_weights_of_one_process(
    pool: GlooPool, spread: dict[str, object], spec: GraphormerSpec | GraphGPSSpec
) -> None:
    alone = Case(odd_set(), spec=spec, steps=3)
    (expected,) = run(pool, alone)
    errors = compare(run(pool, replace(alone, **spread)), expected)
    assert errors.largest <= 1e-10, errors
    (kept,) = run(pool, replace(alone, spec=spec.model_copy(update={"attention_dropout": 0.0}), steps=1))
    assert kept.losses[0] != pytest.approx(expected.losses[0], rel=1e-3)
