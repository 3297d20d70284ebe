"""What equality means: every rank of a case against the dense process, in float64."""

import pytest
import torch

from tests.distributed.equality import Case, Outcome, gather_rows, relative_errors, run_dense, run_parallel
from tests.kit.gloo_pool import GlooPool

FLOAT64_BAR = 1e-10


def check_float64(pool: GlooPool, case: Case) -> list[Outcome]:
    """Hold every rank of ``case`` against the dense process: losses, outputs, gradients, parameters."""
    expected = run_dense(case)
    outcomes = pool.run(run_parallel, case, world_size=case.world_size)
    logits = gather_rows(outcomes)
    assert logits.keys() == expected.logits.keys()
    for graph, exact in expected.logits.items():
        torch.testing.assert_close(logits[graph], exact, rtol=FLOAT64_BAR, atol=FLOAT64_BAR)
    for kind in ("gradients", "parameters"):
        exact = getattr(expected, kind)
        assert {name for outcome in outcomes for name in getattr(outcome, kind)} == exact.keys()
        for outcome in outcomes:
            errors = relative_errors(getattr(outcome, kind), exact=exact)
            assert max(errors.values()) <= FLOAT64_BAR, (kind, errors)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=FLOAT64_BAR)
    return outcomes
