"""What the service asks of a cluster: its shape, and to submit, watch and stop one driver per job.

``ClusterClient`` is the seam between the dispatcher and Ray. ``RayCluster`` (``ray_cluster.py``) speaks to a real
dashboard, the tests' fake keeps runs in a dict. Two failures are kept apart throughout: *the cluster says that there
is no such run* (``RunState.MISSING``, a fact) and *the cluster cannot be asked* (``ClusterUnreachableError``, which
says nothing about the run and must never fail a job).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from planner.frozen import Frozen


class ClusterUnreachableError(GraphmillError):
    """The cluster did not answer in time, or answered that it cannot serve now. Ask again later."""

    code = "cluster_unreachable"


class ClusterRefusedError(GraphmillError):
    """The cluster answered, and refused: a wrong token, or a request that it does not accept."""

    code = "cluster_refused"


class RunState(StrEnum):
    """Where the driver of a job is, in the cluster's own words; ``MISSING``: the cluster does not know it."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    MISSING = "MISSING"

    @property
    def is_over(self) -> bool:
        """Whether no driver process is left (or ever was)."""
        return self not in (RunState.PENDING, RunState.RUNNING)


class RunStatus(Frozen):
    """One observation of a driver: its state, and the cluster's message about it."""

    state: RunState
    message: str = ""


class ClusterClient(Protocol):
    """A cluster that runs drivers. Every method may raise ``ClusterUnreachableError`` and returns within seconds."""

    @property
    def dashboard_url(self) -> str:
        """Where people look at the cluster."""
        ...

    def shape(self) -> ClusterSpec:
        """The live nodes and what of them is free now."""
        ...

    def submit(
        self,
        job_id: str,
        *,
        submission_id: str,
        entrypoint: str,
        env_vars: Mapping[str, str],
        metadata: Mapping[str, str],
    ) -> None:
        """Start ``entrypoint`` as the driver of a job. A ``submission_id`` that was submitted before is a no-op.

        ``env_vars`` are visible to everyone who may see the cluster: switches only, never a secret.
        """
        ...

    def status(self, submission_id: str) -> RunStatus:
        """Where that driver is now."""
        ...

    def stop(self, submission_id: str) -> None:
        """Ask the driver to end: a signal first, SIGKILL after its grace time. Unknown or ended ids are a no-op."""
        ...
