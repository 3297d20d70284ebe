"""The embedded cluster without Ray: what is remembered, refused and cleaned up. ``tests/on_ray`` starts real ones."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from service import embedded
from service.cluster_record import ClusterInfo, mark_of, read_record, temp_link, write_record
from service.embedded import (
    ClusterDiffersError,
    ClusterStartError,
    attach,
    node_environment,
    start_cluster,
    stop_cluster,
)
from service.ports import free_ports
from service.private_files import write_private
from service.processes import ProcessIdentity
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> list[ClusterInfo]:
    """Every cluster is ready at once; those that were waited for."""
    waited: list[ClusterInfo] = []
    monkeypatch.setattr(embedded, "_wait_until_ready", waited.append)
    return waited


def remember(settings: Settings, head: ProcessIdentity) -> ClusterInfo:
    temp_dir = settings.home / "temp"
    temp_dir.mkdir(parents=True)
    temp_link(settings).symlink_to(temp_dir)
    info = ClusterInfo(
        head=head,
        dashboard_url="http://127.0.0.1:1",
        agent_url="http://127.0.0.1:2",
        token_file=settings.home / "ray_token",
        temp_dir=temp_dir,
        log_file=settings.home / "ray.log",
        mark=mark_of(settings),
        environment=settings.environment(),
        graphmill_version=version("graphmill"),
        ray_version="2.60.0",
    )
    info.token_file.write_text("secret\n")
    info.log_file.write_text("all is well\n")
    write_record(settings, info)
    return info


def me() -> ProcessIdentity:
    return ProcessIdentity.of(os.getpid())


@pytest.fixture
def orphan(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this home's cluster; nothing else is known of it."""
    process = subprocess.Popen(["sleep", "600"], env=node_environment(settings), start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_without_a_state_file_there_is_nothing_to_attach_to_or_to_stop(settings: Settings) -> None:
    assert attach(settings) is None
    assert stop_cluster(settings) is False


def test_a_living_head_is_waited_for_and_attached_to_and_not_started_again(
    settings: Settings, ready: list[ClusterInfo]
) -> None:
    info = remember(settings, me())
    assert start_cluster(settings) == info
    assert ready == [info]


def test_a_living_head_that_does_not_answer_is_told_and_left_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = remember(settings, me())
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.2)
    with pytest.raises(ClusterStartError, match="the dashboard did not answer within"):
        start_cluster(settings)
    assert attach(settings) == info


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"storage": "/elsewhere"}, "GRAPHMILL_STORAGE"),
        ({"data_root": "/elsewhere"}, "GRAPHMILL_DATA_ROOT"),
        ({"database_url": "postgresql+psycopg://graphmill:pony@db/jobs"}, "GRAPHMILL_DATABASE_URL"),
    ],
)
def test_a_cluster_that_was_started_with_other_settings_is_not_attached_to(
    settings: Settings, ready: list[ClusterInfo], change: dict[str, Any], name: str
) -> None:
    remember(settings, me())
    with pytest.raises(ClusterDiffersError, match=rf"another {name};.*`graphmill stop`") as caught:
        start_cluster(Settings(home=settings.home, **change))
    assert "pony" not in caught.value.message
    assert ready == []


def test_a_cluster_serves_an_api_on_another_port(settings: Settings, ready: list[ClusterInfo]) -> None:
    info = remember(settings, me())
    assert start_cluster(settings.model_copy(update={"port": settings.port + 1})) == info


def test_a_cluster_of_another_version_is_not_attached_to(settings: Settings) -> None:
    write_record(settings, remember(settings, me()).model_copy(update={"graphmill_version": "0.0.1"}))
    with pytest.raises(ClusterDiffersError, match=r"version of graphmill \(0\.0\.1, now "):
        start_cluster(settings)


def test_a_pid_that_was_given_to_somebody_else_is_not_attached_to(settings: Settings) -> None:
    remember(settings, me().model_copy(update={"start_ticks": me().start_ticks - 1}))
    assert attach(settings) is None


def test_stop_ends_the_head_and_leaves_no_trace(settings: Settings) -> None:
    head = subprocess.Popen(["sleep", "600"], start_new_session=True)
    info = remember(settings, ProcessIdentity.of(head.pid))
    assert stop_cluster(settings) is True
    assert not info.head.is_alive()
    assert not info.temp_dir.exists()
    assert not info.token_file.exists()
    assert attach(settings) is None
    assert not temp_link(settings).is_symlink()


@pytest.mark.parametrize("state_file", [None, '{"pid": 1}', '{"cut of'])
def test_a_cluster_without_a_readable_state_file_is_ended_all_the_same(
    settings: Settings, orphan: "subprocess.Popen[bytes]", tmp_path: Path, state_file: str | None
) -> None:
    temp_dir = tmp_path / "temp"
    temp_dir.mkdir()
    settings.home.mkdir(parents=True)
    temp_link(settings).symlink_to(temp_dir)
    if state_file is not None:
        (settings.home / "cluster.json").write_text(state_file)
    assert attach(settings) is None
    stop_cluster(settings)
    assert orphan.wait(timeout=5) == -signal.SIGKILL
    assert not temp_dir.exists()
    assert list(settings.home.iterdir()) == [settings.home / "cluster.lock"]


def test_a_process_that_shares_a_public_variable_with_the_cluster_is_not_of_it(settings: Settings) -> None:
    head = subprocess.Popen(["sleep", "600"], start_new_session=True)
    info = remember(settings, ProcessIdentity.of(head.pid))
    shared = {"RAY_AUTH_TOKEN_PATH": str(info.token_file), "GRAPHMILL_HOME": str(settings.home)}
    users = subprocess.Popen(["sleep", "600"], env={**os.environ, **shared}, start_new_session=True)
    try:
        stop_cluster(settings)
        assert users.poll() is None
    finally:
        users.kill()
        users.wait()


def test_a_start_that_fails_says_what_ray_said_and_leaves_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; print('the port is taken'); sys.exit(3)"
    monkeypatch.setattr(embedded, "_command", lambda temp_dir, ports: [sys.executable, "-c", program])
    with pytest.raises(ClusterStartError, match=r"(?s)`ray start` ended.*the port is taken"):
        start_cluster(settings)
    assert read_record(settings) is None
    assert sorted(path.name for path in settings.home.iterdir()) == ["cluster.lock", "ray.log"]


def test_a_start_that_dies_before_it_is_recorded_is_found_by_the_next_stop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start_and_die(*arguments: Any, **options: Any) -> None:
        started.append(popen(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_command", lambda temp_dir, ports: ["sleep", "600"])
    monkeypatch.setattr(embedded, "_forget", lambda settings: None)  # as if killed: nothing is tidied up
    with monkeypatch.context() as dying:
        dying.setattr(embedded.subprocess, "Popen", start_and_die)
        with pytest.raises(KeyboardInterrupt):
            start_cluster(settings)
    monkeypatch.undo()
    temp_dir = temp_link(settings).readlink()
    stop_cluster(settings)
    assert started[0].wait(timeout=5) == -signal.SIGKILL
    assert not temp_dir.exists()


def test_a_start_that_hangs_is_given_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_command", lambda temp_dir, ports: ["sleep", "600"])
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.2)
    with pytest.raises(ClusterStartError, match="the dashboard did not answer within"):
        start_cluster(settings)
    assert attach(settings) is None


def test_the_nodes_get_our_settings_and_none_of_the_callers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("GRAPHMILL_API_KEY", "a-key-that-stays-with-the-api")
    environment = node_environment(settings)
    assert "RAY_ADDRESS" not in environment
    assert "GRAPHMILL_API_KEY" not in environment
    assert environment["GRAPHMILL_HOME"] == str(settings.home)
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_a_private_file_is_its_owners_alone_and_so_is_the_folder_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "home" / "secret"
    for text in ("first", "second"):
        write_private(path, text)
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (text, 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_free_ports_are_different_and_outside_of_the_kernels_and_rays_ranges() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    assert all(20_000 <= port < 32_000 for port in ports)
