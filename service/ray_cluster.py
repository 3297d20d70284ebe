"""A Ray cluster seen through its dashboard's HTTP API; this process never joins it and never imports ray.

The API process must outlive the cluster (a Ray driver aborts when the head dies), so all it holds is an address and a
token. Ray's answers are taken for what they mean, not for their codes: a second submission under one id answers 500
with a traceback, a missing job agent answers 500 for ever, an unknown run answers 404.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import httpx

from planner.cluster import ClusterSpec
from service.cluster import (
    ClusterRefusedError,
    ClusterTroubledError,
    ClusterUnreachableError,
    RunState,
    RunStatus,
)
from service.nodes import node_spec

_TIMEOUT = httpx.Timeout(5.0, connect=2.0)
_SUBMIT_TIMEOUT = httpx.Timeout(15.0, connect=2.0)  # Ray itself waits up to 10 s for its job agent
_LONGEST_MESSAGE = 2_000

# Switches of Ray, never settings of ours: a runtime environment is shown to everyone who may see the dashboard.
DRIVER_SWITCHES: Mapping[str, str] = {
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # without it the Train page answers 500
    "RAY_JOB_STOP_SIGNAL": "SIGINT",  # the one signal on which Ray Train takes its run apart
    # A driver is stopped when it has not obeyed for ``cancel_grace_s``: both together stay below the 10 s of a cancel.
    "RAY_JOB_STOP_WAIT_TIME_S": "2",
    # The controller looks at its ranks this often: by default a report waits up to 2 s, and so does the end.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    # One process less per run. It gives notice of nodes being drained; a node that dies is noticed without it.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_COLOR_PREFIX": "0",  # the driver's log is read by people in files
}


class RayCluster:
    """The ``ClusterClient`` for a real cluster."""

    def __init__(self, dashboard_url: str, *, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        self._url = dashboard_url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # No proxy from the environment: a dashboard is on this machine or inside the same network.
        self._client = httpx.Client(
            base_url=self._url, headers=headers, timeout=_TIMEOUT, trust_env=False, transport=transport
        )

    @property
    def dashboard_url(self) -> str:
        """Where people look at the cluster."""
        return self._url

    def shape(self) -> ClusterSpec:
        """The live nodes; what is free is at most about a second old (Ray's autoscaler reports it)."""
        nodes = self._get("/api/v0/nodes", detail="1", limit="10000")
        status = self._get("/api/cluster_status")
        version = self._get("/api/version")
        with _understood("the shape of the cluster"):
            return _cluster_spec(nodes, status=status, version=version)

    def submit(self, job_id: str, *, submission_id: str, entrypoint: str, metadata: Mapping[str, str]) -> None:
        """Start a driver with ``DRIVER_SWITCHES``; an id that was submitted before is a no-op.

        Raises ``ClusterUnreachableError``, ``ClusterTroubledError`` (try again, the same id is safe) or
        ``ClusterRefusedError``.
        """
        body = {
            "entrypoint": entrypoint,
            "submission_id": submission_id,
            "runtime_env": {"env_vars": dict(DRIVER_SWITCHES)},
            "metadata": {"graphmill_job": job_id, **metadata},
        }
        response = self._send("POST", "/api/jobs/", json=body, timeout=_SUBMIT_TIMEOUT)
        if response.is_success or self.status(submission_id).state is not RunState.MISSING:
            return
        raise _complaint(response, f"submit of {submission_id}")

    def status(self, submission_id: str) -> RunStatus:
        """Where that driver is now; ``MISSING`` when the cluster does not know it."""
        response = self._send("GET", f"/api/jobs/{submission_id}")
        if response.status_code == HTTPStatus.NOT_FOUND:
            return RunStatus(state=RunState.MISSING)
        found = _payload(response, f"status of {submission_id}")
        with _understood(f"the status of {submission_id}"):
            return RunStatus(state=RunState(found["status"]), message=(found.get("message") or "")[-_LONGEST_MESSAGE:])

    def stop(self, submission_id: str) -> None:
        """Send the driver SIGINT, and SIGKILL 2 s later; unknown and ended ids are a no-op."""
        response = self._send("POST", f"/api/jobs/{submission_id}/stop")
        if response.status_code != HTTPStatus.NOT_FOUND:
            _payload(response, f"stop of {submission_id}")

    def _get(self, path: str, **query: str) -> Any:
        return _payload(self._send("GET", path, params=query), path)

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise ClusterUnreachableError(
                f"the cluster's dashboard at {self._url} did not answer {method} {path}: {error!r}; check that the"
                " cluster runs and that this machine reaches it",
                dashboard=self._url,
            ) from error


def _cluster_spec(nodes: Any, *, status: Any, version: Any) -> ClusterSpec:
    """The cluster in the planner's words, out of the dashboard's three answers."""
    alive = tuple(
        node_spec(
            node_id=node["node_id"],
            address=node["node_ip"],
            resources=node.get("resources_total") or {},
            labels=node.get("labels"),
        )
        for node in nodes["data"]["result"]["result"]
        if node["state"] == "ALIVE"
    )
    report = (status["data"]["clusterStatus"] or {}).get("loadMetricsReport") or {}
    usage = report.get("usage") or {}
    return ClusterSpec(
        nodes=alive,
        free_cpus=_free(usage, "CPU", total=sum(node.num_cpus for node in alive)),
        free_gpus=_free(usage, "GPU", total=sum(node.num_gpus for node in alive)),
        ray_version=version["ray_version"],
        observed_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _free(usage: Mapping[str, Any], resource: str, *, total: float) -> float:
    used, known_total = usage.get(resource, (0.0, total))
    return max(0.0, float(known_total) - float(used))


def _payload(response: httpx.Response, what: str) -> Any:
    if not response.is_success:
        raise _complaint(response, what)
    try:
        return response.json()
    except ValueError as error:
        raise ClusterTroubledError(
            f"{response.url.host}:{response.url.port} answered {what} with something that is not JSON; does"
            f" {response.url} belong to a Ray dashboard?"
        ) from error


@contextmanager
def _understood(what: str) -> Iterator[None]:
    """Name an answer that is not of the form that Ray 2.60 gives it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ClusterTroubledError(
            f"the dashboard told {what} in a form that this version of graphmill does not know ({error!r}); does the"
            " cluster run the Ray that graphmill asks for?"
        ) from error


def _complaint(response: httpx.Response, what: str) -> ClusterRefusedError | ClusterTroubledError:
    """The error behind an answer: 4xx is a refusal, anything else means "not now"."""
    code, text = response.status_code, response.text.strip()[-_LONGEST_MESSAGE:]
    if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ClusterRefusedError(f"the cluster wants another token for {what} (HTTP {code}: {text})", status=code)
    if response.is_client_error:
        return ClusterRefusedError(f"the cluster refused {what} (HTTP {code}): {text}", status=code)
    return ClusterTroubledError(f"the cluster cannot serve {what} now (HTTP {code}): {text}", status=code)
