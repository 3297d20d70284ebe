"""Equality: spread over ranks in any way, a model computes what the plain module computes in one process.

models x layouts ─ cases ─▶ sides: ranks of a pool | the plain module by hand ─ claims ─▶ equal or not
"""

from tests.distributed.equality.cases import SPEC, Case, Width, plan_of
from tests.distributed.equality.claims import Errors, Judge, compare, relative_errors
from tests.distributed.equality.sides import Outcome, build, run_alone, run_parallel, spread

__all__ = [
    "SPEC",
    "Case",
    "Errors",
    "Judge",
    "Outcome",
    "Width",
    "build",
    "compare",
    "plan_of",
    "relative_errors",
    "run_alone",
    "run_parallel",
    "spread",
]
