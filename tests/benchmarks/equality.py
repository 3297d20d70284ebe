"""Every model x exchange x layout x sharding on the ranks of a pool, against the plain module in one process.

All cells of ``tests.distributed.equality``: up to four ranks as every pp x dp x cp and in uneven stages; some of six
and eight. Each runs in float64 (loss, outputs, all gradients, parameters after three updates) and in float32, judged
against float64: an error counts by how far it is over 1e-5 or over that of the one process in float32. With
``--store FILE`` every cell is kept in a file, and a later run goes on where one ended.
"""

import sys
from collections import Counter
from functools import partial
from typing import Any

from tests.benchmarks.frame import Outcome, main
from tests.benchmarks.kept import Kept, parse_store
from tests.distributed.equality import Judge
from tests.distributed.equality.claims import FLOAT32_BAR, FLOAT64_BAR
from tests.distributed.equality.layouts import Cell, all_cells, covering
from tests.kit.gloo_pool import GlooPool, RanksFailedError


def measure(*, kept: Kept) -> Outcome:
    """The largest errors of both dtypes over all cells, and the cells that fail."""
    exact: dict[str, float] = {}
    single: dict[str, float] = {}
    shares: dict[str, float] = {}  # of what is allowed in float32
    failures: dict[str, str] = {}
    found = all_cells()
    found = [*dict.fromkeys([*covering(found), *found])]  # what is most unlike comes first
    with GlooPool(8) as pool:
        judge = Judge(pool)
        for place, cell in enumerate(found, 1):
            try:
                errors = kept.get(cell.name, make=partial(errors_of, judge, cell))
            except RanksFailedError as error:
                failures[cell.name] = str(error)
                continue
            exact[cell.name], single[cell.name], shares[cell.name] = errors
            if exact[cell.name] > FLOAT64_BAR or shares[cell.name] > 1:
                failures[cell.name] = f"{exact[cell.name]:.1e}, {single[cell.name]:.1e} in float32"
            print(f"{place} of {len(found)}: {cell.name}: {exact[cell.name]:.1e}, {single[cell.name]:.1e}", flush=True)
    for name, said in failures.items():
        print(f"failed: {name}: {said}", flush=True)
    return Outcome(
        figures={
            "cases": 2 * len(found),
            "failures": len(failures),
            "float64_error_max": max(exact.values()),
            "float32_error_max": max(single.values()),
            "float32_share_max": max(shares.values()),
        },
        verdicts={"failures": not failures},
        details={"failures": failures, "worst": worst_of(exact, single), **counts(found)},
    )


def errors_of(judge: Judge, cell: Cell) -> tuple[float, float, float]:
    """The largest error in float64, that in float32, and the latter as a share of what is allowed."""
    case = cell.case()
    _, exact = judge.float64(case)
    ours, own = judge.float32(case)
    return exact.largest, ours.before_updates, ours.before_updates / max(FLOAT32_BAR, own.before_updates)


def worst_of(exact: dict[str, float], single: dict[str, float]) -> dict[str, str]:
    """The cell of the largest error, by dtype."""
    return {"float64": max(exact, key=exact.__getitem__), "float32": max(single, key=single.__getitem__)}


def counts(found: list[Cell]) -> dict[str, Any]:
    """How many cells each model, exchange and sharding has."""
    return {
        kind: dict(Counter(getattr(cell, kind) for cell in found))
        for kind in ("model", "exchange", "sharding", "layout")
    }


if __name__ == "__main__":
    own, others = parse_store()

    def run() -> Outcome:
        """Every cell."""
        return measure(kept=Kept(own.store))

    sys.exit(main("equality", run, arguments=others))
