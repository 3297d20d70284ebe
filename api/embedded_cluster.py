"""The embedded cluster as the dispatcher sees it: one client, although the cluster behind it may have to be replaced.

A head can die under a serving API (out of memory, a stray kill). Each look at the cluster's shape, which begins every
round of the dispatcher, asks whether the head lives, and starts another one if not; what ran on the old one is then
MISSING, and the dispatcher draws its conclusions.
"""

import logging
from collections.abc import Mapping

from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from service.cluster import ClusterClient, ClusterUnreachableError, RunStatus
from service.embedded import attach, start_cluster
from service.ray_cluster import RayCluster
from service.settings import Settings

_log = logging.getLogger(__name__)


class EmbeddedCluster:
    """A ``ClusterClient``. ``was_running``: the cluster was there before this process, with jobs on it perhaps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.was_running = attach(settings) is not None
        self._client = self._connect()

    @property
    def dashboard_url(self) -> str:
        """Where the present cluster's dashboard is."""
        return self._client.dashboard_url

    def shape(self) -> ClusterSpec:
        """The live nodes. Takes as long as a start if there is no cluster any more."""
        if attach(self._settings) is None:
            _log.error("the embedded cluster has died; another one is started")
            try:
                self._client = self._connect()
            except GraphmillError as error:
                raise ClusterUnreachableError(f"the embedded cluster died, and {error.message}") from error
        return self._client.shape()

    def submit(self, job_id: str, *, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> None:
        """Start a driver."""
        self._client.submit(job_id, submission_id=submission_id, entrypoint=entrypoint, metadata=metadata)

    def status(self, submission_id: str) -> RunStatus:
        """Where that driver is now."""
        return self._client.status(submission_id)

    def stop(self, submission_id: str) -> None:
        """Ask the driver to end."""
        self._client.stop(submission_id)

    def _connect(self) -> ClusterClient:
        info = start_cluster(self._settings)
        return RayCluster(info.dashboard_url, token=info.token())
