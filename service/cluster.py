"""What the service asks of a cluster: its shape, and to submit, watch and stop one driver per job.

``ClusterClient`` is the seam between the dispatcher and Ray. ``RayCluster`` (``ray_cluster.py``) speaks to a real
dashboard, the tests' fake keeps runs in a dict. Three failures are kept apart throughout: *the cluster says that there
is no such run* (``RunState.MISSING``, a fact), *the cluster cannot be asked* (``ClusterUnreachableError``, which says
nothing about any run and must never fail a job), and *the cluster stumbles over one question*
(``ClusterTroubledError``, which concerns the run that was asked about and no other).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from planner.cluster import ClusterSpec
from planner.errors import GraphmillError
from planner.frozen import Frozen


class ClusterUnreachableError(GraphmillError):
    """The cluster did not answer in time. Ask again later."""

    code = "cluster_unreachable"


class ClusterTroubledError(GraphmillError):
    """The cluster answered that it cannot serve this now, or answered what nobody understands. Ask again later."""

    code = "cluster_troubled"


class ClusterRefusedError(GraphmillError):
    """The cluster answered, and refused: a wrong token, or a request that it does not accept."""

    code = "cluster_refused"


class RunState(StrEnum):
    """Where the driver of a job is, in the cluster's own words.

    ``MISSING``: the cluster does not know it. ``UNKNOWN``: the cluster answers, but not this question.
    """

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    MISSING = "MISSING"
    UNKNOWN = "UNKNOWN"

    @property
    def is_over(self) -> bool:
        """Whether no driver process is left (or ever was)."""
        return self not in (RunState.PENDING, RunState.RUNNING, RunState.UNKNOWN)


class RunStatus(Frozen):
    """One observation of a driver: its state, and the cluster's message about it."""

    state: RunState
    message: str = ""


class ClusterClient(Protocol):
    """A cluster that runs drivers. Every method returns within seconds and may raise any of the three errors above."""

    @property
    def dashboard_url(self) -> str:
        """Where people look at the cluster."""
        ...

    def shape(self) -> ClusterSpec:
        """The live nodes and what of them is free now."""
        ...

    def submit(self, job_id: str, *, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> None:
        """Start ``entrypoint`` as the driver of a job. A ``submission_id`` that was submitted before is a no-op.

        A driver takes its settings from its node: what travels with it, everyone sees who may see the cluster.
        """
        ...

    def status(self, submission_id: str) -> RunStatus:
        """Where that driver is now."""
        ...

    def stop(self, submission_id: str) -> None:
        """Ask the driver to end: a signal first, SIGKILL after its grace time. Unknown or ended ids are a no-op."""
        ...
