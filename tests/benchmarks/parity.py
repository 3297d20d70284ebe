"""How far the transformer on P = 1, 2, 4 ranks is from one dense process: gradients, outputs and loss, in float64.

Every way to spread P ranks over context and data parallelism, on one graph and on a set of odd ones, dropout on.
"""

import sys
from dataclasses import replace

import torch

from tests.benchmarks.frame import Outcome, main
from tests.distributed.equality import SPEC, Case, compare, run_alone, run_parallel
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
                details[label] = errors_of(pool, replace(alone, cp=cp, dp=dp))
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


def errors_of(pool: GlooPool, case: Case) -> dict[str, float]:
    """The largest errors of one spread, over its ranks, tensors and graphs."""
    exact = run_alone(case)
    found = compare(pool.run(run_parallel, case, world_size=case.world_size), exact)
    single = pool.run(run_parallel, replace(case, dtype=torch.float32), world_size=case.world_size)
    return {
        "gradients": found.gradients,
        "outputs": found.outputs,
        "loss": found.losses,
        "gradients in float32": compare(single, exact).gradients,
    }


if __name__ == "__main__":
    sys.exit(main("parity", measure))
