"""The runtime of sampled GNNs. ``from workers.mqgnn import Trainer`` is its door for scripts (docs/trainer.md)."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.mqgnn.trainer import EpochReport, Trainer

__all__ = ["EpochReport", "Trainer"]


def __getattr__(name: str) -> Any:
    """Import the door when somebody comes through it: values of this package need no tensor library."""
    if name in __all__:
        from workers.mqgnn import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
