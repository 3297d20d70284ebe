"""Recomputation: a unit keeps only its input and runs forward again when its backward needs the rest.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Dropout is a function of counters here
(``workers.ops.counter_dropout``); for modules of the user's own, which may draw from torch's generator, its state is
kept, so the second run drops the same elements in any case. What learns in forward (running statistics) rests in it.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from workers.models.batch_norm import CountedBatchNorm


def apply_recompute(units: Iterable[nn.Module]) -> None:
    """Make ``units`` recompute; parameters keep their names."""
    for unit in units:
        norms = [module for module in unit.modules() if isinstance(module, CountedBatchNorm)]
        unit.forward = partial(
            checkpoint,
            unit.forward,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=partial(_first_and_second, norms),
        )


def _first_and_second(
    norms: list[CountedBatchNorm],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _resting(norms)


@contextmanager
def _resting(norms: list[CountedBatchNorm]) -> Iterator[None]:
    for norm in norms:
        norm.learns = False
    try:
        yield
    finally:
        for norm in norms:
            norm.learns = True
