"""What the store says no to."""

from planner.errors import GraphmillError


class JobNotFoundError(GraphmillError):
    """No job has this id."""

    code = "job_not_found"


class IdempotencyConflictError(GraphmillError):
    """An idempotency key was used before, for another spec."""

    code = "idempotency_key_reused"


class QueueFullError(GraphmillError):
    """More jobs wait than this service keeps; try again later."""

    code = "queue_full"


class JobEndedError(GraphmillError):
    """The job has ended, so there is nothing left to cancel."""

    code = "job_ended"


class CursorInvalidError(GraphmillError):
    """A page cursor was not made by this service."""

    code = "cursor_invalid"


class StoreUnavailableError(GraphmillError):
    """The database cannot be opened, or was written by a newer version."""

    code = "store_unavailable"
