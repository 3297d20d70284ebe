"""What equality means: every rank of a case against the plain module in one process.

In float64 loss, outputs, all gradients and the parameters after the last step are equal to 1e-10, relative. Float32 is
judged against float64: its first loss, outputs and gradients may be off by 1e-5, or by what the one process in float32
is off itself, since dense float32 is no nearer to the truth.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tests.distributed.equality.cases import Case
from tests.distributed.equality.sides import Outcome, run_alone, run_parallel
from tests.kit.gloo_pool import GlooPool

Name = TypeVar("Name")
FLOAT64_BAR, FLOAT32_BAR = 1e-10, 1e-5


@dataclass(frozen=True)
class Errors:
    """The largest relative error of a kind over all ranks, tensors and steps."""

    losses: float
    outputs: float
    gradients: float
    parameters: float

    @property
    def largest(self) -> float:
        """Of all kinds."""
        return max(self.losses, self.outputs, self.gradients, self.parameters)

    @property
    def before_updates(self) -> float:
        """Of all kinds that no update enters: Adam's first updates keep little but the signs of gradients."""
        return max(self.losses, self.outputs, self.gradients)


class Judge:
    """Holds cases on the ranks of ``pool`` against the one process, which is asked once for whatever cases share."""

    def __init__(self, pool: GlooPool) -> None:
        self.pool = pool
        self._expected: dict[tuple[Any, ...], tuple[Case, Outcome]] = {}

    def expected(self, case: Case) -> Outcome:
        """What the one process ends with."""
        key = (
            id(case.dataset),  # kept alive beside it
            case.spec.model_dump_json(),
            *(case.dtype, case.batch_size, case.steps, case.num_micro_batches, case.clip_norm),
        )
        if key not in self._expected:
            self._expected[key] = case, self.pool.run(_run_alone, case, world_size=1)[0]
        return self._expected[key][1]

    def float64(self, case: Case) -> tuple[list[Outcome], Errors]:
        """What the ranks end with, and how far it is off."""
        outcomes = self.pool.run(run_parallel, case, world_size=case.world_size)
        return outcomes, compare(outcomes, self.expected(case))

    def float32(self, case: Case) -> tuple[Errors, Errors]:
        """How far the ranks in float32, and the one process in float32, are off from float64 in the first step."""
        case = replace(case, steps=1)
        single, exact = replace(case, dtype=torch.float32), self.expected(case)
        outcomes = self.pool.run(run_parallel, single, world_size=case.world_size)
        return compare(outcomes, exact), compare([self.expected(single)], exact)

    def check(self, case: Case) -> list[Outcome]:
        """Hold every rank of ``case`` to the bar of float64."""
        outcomes, errors = self.float64(case)
        assert errors.largest <= FLOAT64_BAR, errors
        return outcomes

    def check_gradients(self, case: Case) -> None:
        """Hold one step of ``case`` to the bar of float64, up to its gradients.

        Where a gradient is zero by algebra (a bias before batch norm over few rows), Adam steps along its rounding.
        """
        _, errors = self.float64(replace(case, steps=1))
        assert errors.before_updates <= FLOAT64_BAR, errors

    def check_float32(self, case: Case) -> None:
        """Hold every rank of ``case``, run in float32, to its bar."""
        ours, own = self.float32(case)
        assert ours.before_updates <= max(FLOAT32_BAR, own.before_updates), (ours, own)


def compare(outcomes: Sequence[Outcome], exact: Outcome) -> Errors:
    """How far ``outcomes``, one per rank, are from ``exact``. Together they must hold every row and every parameter."""
    for graph, logits in exact.logits.items():
        here = torch.cat([outcome.places[graph] for outcome in outcomes if graph in outcome.places])
        assert here.unique().tolist() == list(range(len(logits))), f"rows of graph {graph}"
    for kind in ("gradients", "parameters"):
        names = {name for outcome in outcomes for name in getattr(outcome, kind)}
        assert names == getattr(exact, kind).keys(), kind
    return Errors(
        losses=worst([abs(a / b - 1) for o in outcomes for a, b in zip(o.losses, exact.losses, strict=True)]),
        outputs=worst([error for outcome in outcomes for error in _output_errors(outcome, exact)]),
        gradients=_largest(outcomes, exact, "gradients"),
        parameters=_largest(outcomes, exact, "parameters"),
    )


def relative_errors(values: Mapping[Name, Tensor], *, exact: Mapping[Name, Tensor]) -> dict[Name, float]:
    """Per tensor: ||value - exact|| / max(||exact||, 1e-3 * median ||exact||), in float64."""
    norms = {name: float(tensor.double().norm()) for name, tensor in exact.items()}
    floor = 1e-3 * statistics.median(norms.values())
    return {
        name: float((values[name].double() - tensor.double()).norm()) / max(norms[name], floor)
        for name, tensor in exact.items()
        if name in values
    }


def worst(errors: Sequence[float]) -> float:
    """The largest; infinite where one is no number."""
    assert errors, "nothing was compared"
    return max(error if math.isfinite(error) else math.inf for error in errors)


def _largest(outcomes: Sequence[Outcome], exact: Outcome, kind: str) -> float:
    return worst(
        [
            error
            for outcome in outcomes
            for error in relative_errors(getattr(outcome, kind), exact=getattr(exact, kind)).values()
        ]
    )


def _output_errors(outcome: Outcome, exact: Outcome) -> list[float]:
    """Of the rows that one rank predicts, graph by graph, against the size of all predictions of the graph."""
    found = []
    for graph, logits in outcome.logits.items():
        wanted = exact.logits[graph][outcome.places[graph]].double()
        found.append(float((logits.double() - wanted).norm() / exact.logits[graph].double().norm()))
    return found


def _run_alone(rank: int, world_size: int, case: Case) -> Outcome:
    return run_alone(case)
