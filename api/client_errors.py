"""What a client of the API may meet. A refusal carries the service's own problem document."""

from api.schemas.problems import Problem
from planner.errors import GraphmillError


class ServiceUnreachableError(GraphmillError):
    """The service did not answer for as long as the client was willing to wait."""

    code = "service_unreachable"


class RequestRefusedError(GraphmillError):
    """The service answered with a problem document: ``problem`` holds it."""

    code = "request_refused"

    @property
    def problem(self) -> Problem:
        """What the service said."""
        return Problem.model_validate(self.details["problem"])


class WaitTimeoutError(GraphmillError):
    """The job has not ended within the time that the caller gave it; it goes on."""

    code = "wait_timeout"


class DownloadRefusedError(GraphmillError):
    """The service named a file that would lie outside the folder of the download."""

    code = "download_refused"
