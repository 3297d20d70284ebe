"""How far the transformer on P = 1, 2, 4 ranks is from one dense process: gradients, outputs and loss, in float64.

Every way to spread P ranks over context and data parallelism, on one graph and on a set of odd ones, dropout on.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.benchmarks.frame import Outcome, main
from tests.distributed.equality import SPEC, Case, gather_rows, relative_errors, run_dense, run_parallel
from tests.distributed.odd_graphs import odd_set, one_graph
from tests.kit.gloo_pool import GlooPool

RANKS = (1, 2, 4)
GRADIENT_ERROR_LIMIT = 1e-10


def measure() -> Outcome:
    """The largest relative error over all ranks, spreads and data sets; that of float32 is told beside it."""
    spec = SPEC.model_copy(update={"dropout": 0.3, "input_dropout": 0.3})
    sets = {"one graph": one_graph(num_nodes=101), "odd graphs": odd_set()}
    details: dict[str, dict[str, float]] = {}
    with GlooPool(max(RANKS)) as pool:
        for name, dataset in sets.items():
            alone = Case(dataset, spec=spec)
            for cp, dp in spreads(one_graph=len(dataset.graphs) == 1):
                label = f"{name}, cp {cp} x dp {dp}"
                details[label] = compare(pool, replace(alone, cp=cp, dp=dp))
                print(label, details[label], flush=True)
    error = max(found["gradients"] for found in details.values())
    return Outcome(
        figures={"gradient_error_max": error},
        verdicts={"gradient_error_max": error <= GRADIENT_ERROR_LIMIT},
        details={"relative_errors": details},
    )


def spreads(*, one_graph: bool) -> list[tuple[int, int]]:
    """(cp, dp) of every way to spread the ranks; on one graph there is nothing to deal."""
    ways = [(cp, ranks // cp) for ranks in RANKS for cp in range(1, ranks + 1) if ranks % cp == 0]
    return [(cp, dp) for cp, dp in ways if dp == 1 or not one_graph]


def compare(pool: GlooPool, case: Case) -> dict[str, float]:
    """The largest errors of one spread, over its ranks, tensors and graphs."""
    exact = run_dense(case)
    outcomes = pool.run(run_parallel, case, world_size=case.world_size)
    single = pool.run(run_parallel, replace(case, dtype=torch.float32), world_size=case.world_size)
    return {
        "gradients": max(largest_error(outcome.gradients, exact.gradients) for outcome in outcomes),
        "outputs": largest_error(gather_rows(outcomes), exact.logits),
        "loss": max(abs(outcome.losses[0] / exact.losses[0] - 1) for outcome in outcomes),
        "gradients in float32": max(largest_error(outcome.gradients, exact.gradients) for outcome in single),
    }


def largest_error(values: Mapping[Any, Tensor], exact: Mapping[Any, Tensor]) -> float:
    """The worst of ``relative_errors``."""
    errors = relative_errors(values, exact=exact)
    assert all(map(math.isfinite, errors.values())), errors
    return max(errors.values())


if __name__ == "__main__":
    sys.exit(main("parity", measure))
