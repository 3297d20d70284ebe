"""The tree of errors that users meet. Every room raises subclasses of ``GraphmillError``; each carries a stable code.

A message says what was asked, what was found and what to change. ``details`` holds the same facts as data. The
errors survive pickling, because they travel between the processes of a cluster.
"""

from typing import Any


class GraphmillError(ValueError):
    """Root of all errors shown to users; ``code`` is part of the API and never changes meaning."""

    code = "error"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.details)


def _rebuild(cls: type[GraphmillError], message: str, details: dict[str, Any]) -> GraphmillError:
    return cls(message, **details)


class PlanInvalidError(GraphmillError):
    """A plan breaks one of its own laws (degrees, ranks, units, actions)."""

    code = "plan_invalid"


class NoPlanFitsError(GraphmillError):
    """No candidate satisfies the memory, rank or shape limits; the message names the nearest miss."""

    code = "no_plan_fits"


class ProfileMismatchError(GraphmillError):
    """A profile was measured for another model shape, device or software version."""

    code = "profile_mismatch"
