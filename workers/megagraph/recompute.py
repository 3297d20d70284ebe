"""Recomputation: a unit keeps only its input and runs forward again when its backward needs the rest.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Dropout is a function of counters here
(``workers.ops.counter_dropout``), so the second run drops the same elements without any saved generator state.
"""

from collections.abc import Iterable
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


def apply_recompute(units: Iterable[nn.Module]) -> None:
    """Make ``units`` recompute; parameters keep their names."""
    for unit in units:
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False, preserve_rng_state=False)
