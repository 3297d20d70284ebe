"""The jobs that these tests run: the smallest of either kind, on a data set that needs no file."""

from typing import Any

FOREVER = 1_000_000  # epochs: the test ends the job


def transformer(*, epochs: int = 20, **changes: Any) -> dict[str, Any]:
    """A Graphormer on karate."""
    return {
        "name": "transformer",
        "kind": "megagraph",
        "dataset": {"name": "karate"},
        "model": {"name": "graphormer", "num_layers": 2, "hidden_size": 16, "num_heads": 4},
        "training": {"epochs": epochs, "checkpoint_every_epochs": 5},
        **changes,
    }


def sampled(*, epochs: int = 20, **changes: Any) -> dict[str, Any]:
    """GraphSAGE on karate."""
    return {
        "name": "sampled",
        "kind": "mqgnn",
        "dataset": {"name": "karate"},
        "model": {"name": "graphsage", "hidden_size": 16, "fanouts": [5, 5]},
        "training": {"epochs": epochs, "batch_size": 8, "checkpoint_every_epochs": 5},
        **changes,
    }
