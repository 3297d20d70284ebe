"""The embedded cluster: a local Ray head with its dashboard, started, found again and ended by Graphmill.

It is a session of its own, so neither Ctrl-C in a terminal nor the death of the API reaches it; a state file in
``settings.home`` (``cluster_record.py``) says where it is, and the next ``serve`` attaches. It never shares anything
with another Ray on the machine: own ports, temporary folder and token. Its processes carry Graphmill's settings in
their environment, which is how drivers find the database; no secret of the API is among them.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx

from planner.errors import GraphmillError
from service.cluster_record import (
    ClusterInfo,
    mark_of,
    read_record,
    remove_record,
    temp_link,
    token_file,
    write_record,
)
from service.nodes import labels_of_this_node
from service.ports import free_ports
from service.private_files import write_private
from service.processes import ProcessIdentity, end_processes
from service.settings import Settings

# Measured: 4-8 s on two cores; several times that while other work holds them.
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 5.0
KILL_TIMEOUT_S = 10.0
OBJECT_STORE_BYTES = 256 * 2**20  # chosen: our drivers pass no tensors through it; Ray's least is 75 MiB
CPUS_PER_CORE = 4  # a rank asks for one logical CPU; threads come from its plan, so waiting ranks cost nothing
MIN_CPUS = 8

_PORTS = {
    "port": "the cluster's address",
    "dashboard-port": "dashboard and Jobs API",
    "dashboard-agent-listen-port": "job agent",
    "dashboard-agent-grpc-port": "metrics agent",
    "runtime-env-agent-port": "runtime environments",
    "metrics-export-port": "Prometheus",
    "object-manager-port": "objects",
    "node-manager-port": "scheduling",
    "ray-client-server-port": "none: the start hook drops this server, but Ray checks its default port before",
}
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_NODE_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    # No cluster of several machines: its node is 127.0.0.1, and no port of it listens elsewhere. The name is Ray's.
    LOOPBACK_SWITCH: "0",
    # A dead node is noticed after 1.3 s instead of 14.7 s.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    # SIGTERM ends the cluster now; by default it would drain for 30 s first.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",  # how old the figures of free resources are
    "RAY_START_HOOK": "service.ray_start_hook.without_client_server",
    "PYTHONSAFEPATH": "1",  # no file of the folder in which a process starts must pass for a module
}


class ClusterStartError(GraphmillError):
    """The embedded cluster did not come up; the message carries the end of its log."""

    code = "cluster_start_failed"


class ClusterStopError(GraphmillError):
    """Processes of the embedded cluster outlived SIGKILL; the message names them."""

    code = "cluster_stop_failed"


class ClusterDiffersError(GraphmillError):
    """The running embedded cluster was started with other settings, or by another version; the message says which."""

    code = "cluster_differs"


def start_cluster(settings: Settings) -> ClusterInfo:
    """Attach to the running embedded cluster, or start one; either way wait until it takes jobs.

    Raises ``ClusterStartError`` when it is not ready in time: nothing is left then of a new one, a running one is left
    alone. Raises ``ClusterDiffersError`` when a running one does not serve these settings.
    """
    with _one_at_a_time(settings):
        info = attach(settings)
        if info is None:
            _forget(settings)
            return _start(settings)
        _check_same(info, settings)
        _wait_until_ready(info)
        return info


def attach(settings: Settings) -> ClusterInfo | None:
    """The embedded cluster of this home, or None when it does not run (any more)."""
    info = read_record(settings)
    return info if info is not None and info.head.is_alive() else None


def stop_cluster(settings: Settings) -> bool:
    """End the embedded cluster and all it started; its folder and state file go too. False when there was none.

    Raises ``ClusterStopError`` naming the processes that could not be ended.
    """
    with _one_at_a_time(settings):
        was_alive = attach(settings) is not None
        _forget(settings)
        return was_alive


def _check_same(info: ClusterInfo, settings: Settings) -> None:
    """Refuse to attach to a cluster whose drivers would use another database or other folders than the API."""
    asked = settings.environment()
    differing = sorted(name for name in {*asked, *info.environment} if asked.get(name) != info.environment.get(name))
    if info.graphmill_version != version("graphmill"):
        differing.append(f"version of graphmill ({info.graphmill_version}, now {version('graphmill')})")
    if differing:
        raise ClusterDiffersError(
            f"the embedded cluster of {settings.home} runs, and was started with another {' and '.join(differing)};"
            " set what it was started with, or run `graphmill stop`, which ends it and its jobs",
            differing=differing,
        )


def _start(settings: Settings) -> ClusterInfo:
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    temp_dir = Path(tempfile.mkdtemp(prefix="gm-"))  # short: socket paths below it must stay under 107 characters
    temp_link(settings).symlink_to(temp_dir)
    try:
        info = _launch(settings, temp_dir=temp_dir, ports=ports)
        _wait_until_ready(info)
    except BaseException:
        _forget(settings)
        raise
    return info


def _launch(settings: Settings, *, temp_dir: Path, ports: dict[str, int]) -> ClusterInfo:
    log_file = settings.home / "ray.log"
    write_private(token_file(settings), secrets.token_hex(32))
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            _command(temp_dir, ports),
            env=node_environment(settings),
            cwd=settings.home,  # drivers start here: no file of a user's folder must pass for a module of ours
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    info = ClusterInfo(
        head=ProcessIdentity.of(process.pid),
        dashboard_url=f"http://127.0.0.1:{ports['dashboard-port']}",
        agent_url=f"http://127.0.0.1:{ports['dashboard-agent-listen-port']}",
        token_file=token_file(settings),
        temp_dir=temp_dir,
        log_file=log_file,
        mark=mark_of(settings),
        environment=settings.environment(),
        graphmill_version=version("graphmill"),
        ray_version=version("ray"),
    )
    write_record(settings, info)
    return info


def _command(temp_dir: Path, ports: dict[str, int]) -> list[str]:
    cores = os.cpu_count() or 1
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--{name}={port}" for name, port in ports.items()),
        *("--dashboard-host=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"),
        f"--num-cpus={max(MIN_CPUS, CPUS_PER_CORE * cores)}",
        "--labels=" + ",".join(f"{name}={value}" for name, value in labels_of_this_node().items()),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={temp_dir / 'ray'}",  # Ray opens its folder to everyone; the one around it stays ours
    ]


def node_environment(settings: Settings) -> dict[str, str]:
    """What a node starts with: the caller's environment without its Ray and Graphmill variables, then ours."""
    mark, _, home = mark_of(settings).partition("=")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "GRAPHMILL_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    return {
        **inherited,
        "PATH": path,  # a driver is started as plain "python": it has to be this one
        **_NODE_ENVIRONMENT,
        "RAY_AUTH_TOKEN_PATH": str(token_file(settings)),
        mark: home,
        **settings.environment(),
    }


def _wait_until_ready(info: ClusterInfo) -> None:
    """Wait for the dashboard, a living node and the agent that starts jobs: without the last, no submit ever works."""
    deadline = time.monotonic() + START_TIMEOUT_S
    headers = {"Authorization": f"Bearer {info.token()}"}
    with httpx.Client(headers=headers, timeout=2.0, trust_env=False) as client:
        for what, is_there in _signs_of_life(info, client):
            while not is_there():
                if not info.head.is_alive():
                    raise _start_error(info, "`ray start` ended")
                if time.monotonic() > deadline:
                    raise _start_error(info, f"{what} did not answer within {START_TIMEOUT_S:g} s")
                time.sleep(0.1)


def _signs_of_life(info: ClusterInfo, client: httpx.Client) -> Iterator[tuple[str, Callable[[], bool]]]:
    """What has to be there, and whether it is, in the order in which they appear."""
    dashboard, agent = info.dashboard_url, info.agent_url
    yield "the dashboard", lambda: _answers(client, f"{dashboard}/api/version", info.ray_version)
    yield "the node", lambda: _answers(client, f"{dashboard}/api/v0/nodes", "ALIVE")
    yield "the job agent", lambda: _answers(client, f"{agent}/api/local_raylet_healthz", "success")
    yield "`ray start`", info.address_file.exists


def _answers(client: httpx.Client, url: str, expected: str) -> bool:
    try:
        response = client.get(url)
    except httpx.HTTPError:
        return False
    return response.is_success and expected in response.text


def _start_error(info: ClusterInfo, what: str) -> ClusterStartError:
    tail = "\n".join(info.log_file.read_text(errors="replace").splitlines()[-20:])
    return ClusterStartError(
        f"the embedded cluster is not ready: {what}. The end of {info.log_file}:\n{tail}", log_file=str(info.log_file)
    )


def _forget(settings: Settings) -> None:
    """End whatever runs of this home's cluster, then remove all trace of it. Raises ``ClusterStopError``."""
    info = read_record(settings)
    mark = mark_of(settings) if info is None else info.mark
    left = end_processes(None if info is None else info.head, mark=mark, grace_s=STOP_GRACE_S, kill_s=KILL_TIMEOUT_S)
    if left:
        raise ClusterStopError(f"processes {left} of the embedded cluster did not end, even on SIGKILL", pids=left)
    if temp_link(settings).is_symlink():
        shutil.rmtree(temp_link(settings).readlink(), ignore_errors=True)
    remove_record(settings)


@contextmanager
def _one_at_a_time(settings: Settings) -> Iterator[None]:
    """Hold this home's lock; it falls with the process that holds it."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (settings.home / "cluster.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
