"""A loss that is no number ends a run on every rank alike, and the message says where it came from."""

import math
from collections.abc import Sequence

from workers.errors import TrainingDivergedError


def sum_shares(shares: Sequence[float], *, ranks: Sequence[int], step: int) -> float:
    """The loss of optimiser step ``step`` over the global batch, from the share of each of ``ranks``.

    Raises ``TrainingDivergedError``, naming the ranks whose share is NaN or infinite.
    """
    diverged = {rank: share for rank, share in zip(ranks, shares, strict=True) if not math.isfinite(share)}
    if diverged:
        raise TrainingDivergedError(
            f"the loss became {next(iter(diverged.values()))} in step {step} on rank {', '.join(map(str, diverged))};"
            " try a lower learning_rate, and look at the features of the nodes there",
            step=step,
            ranks=[*diverged],
        )
    return math.fsum(shares)
