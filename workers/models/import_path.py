"""A module of the user's own, found by its import path and built: ``package.module:callable``."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn

from workers.errors import ModelInvalidError


def build_by_path(path: str, *, arguments: Mapping[str, Any], num_features: int, num_classes: int) -> nn.Module:
    """What the callable at ``path`` makes of ``arguments``, ``num_features`` and ``num_classes``.

    Raises ``ModelInvalidError`` for a path without one, and for what is no module.
    """
    place, name = path.split(":")
    try:
        build = getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise ModelInvalidError(
            f"{path} cannot be imported here: {error}; the module must be installed on every node"
        ) from error
    try:
        module = build(**arguments, num_features=num_features, num_classes=num_classes)
    except TypeError as error:
        raise ModelInvalidError(
            f"{path} was called with {sorted([*arguments, 'num_features', 'num_classes'])}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ModelInvalidError(f"{path} must return a torch.nn.Module; found {type(module).__name__}")
    return module
