"""Recomputation: a unit keeps only its input and runs forward again when its backward needs the rest.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016. Dropout is a function of counters here
(``workers.ops.counter_dropout``), so the second run drops the same elements without any saved generator state.
"""

from collections.abc import Collection
from functools import partial

from torch.utils.checkpoint import checkpoint

from workers.models.units import GraphTransformer


def apply_recompute(model: GraphTransformer, *, units: Collection[str]) -> None:
    """Make the named ``units`` of ``model`` recompute; parameters keep their names."""
    for name, unit in model.units().items():
        if name in units:
            unit.forward = partial(checkpoint, unit.forward, use_reentrant=False, preserve_rng_state=False)
