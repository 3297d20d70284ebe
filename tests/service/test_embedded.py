"""The embedded cluster without Ray: what is remembered, refused and cleaned up. ``tests/on_ray`` starts real ones."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service import embedded
from service.embedded import ClusterInfo, ClusterStartError, attach, start_cluster, stop_cluster
from service.ports import free_ports
from service.processes import ProcessIdentity
from service.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def remember(settings: Settings, head: ProcessIdentity) -> ClusterInfo:
    temp_dir = settings.home / "temp"
    temp_dir.mkdir(parents=True)
    info = ClusterInfo(
        head=head,
        dashboard_url="http://127.0.0.1:1",
        agent_url="http://127.0.0.1:2",
        token_file=settings.home / "ray_token",
        temp_dir=temp_dir,
        log_file=settings.home / "ray.log",
        ray_version="2.60.0",
    )
    info.token_file.write_text("secret\n")
    (settings.home / "cluster.json").write_text(info.model_dump_json())
    return info


def test_without_a_state_file_there_is_nothing_to_attach_to_or_to_stop(settings: Settings) -> None:
    assert attach(settings) is None
    assert stop_cluster(settings) is False


def test_a_living_head_is_attached_to_and_not_started_again(settings: Settings) -> None:
    info = remember(settings, ProcessIdentity.of(os.getpid()))
    assert start_cluster(settings) == info


def test_a_pid_that_was_given_to_somebody_else_is_not_attached_to(settings: Settings) -> None:
    me = ProcessIdentity.of(os.getpid())
    remember(settings, me.model_copy(update={"start_ticks": me.start_ticks - 1}))
    assert attach(settings) is None


def test_stop_ends_the_head_and_leaves_no_trace(settings: Settings) -> None:
    head = subprocess.Popen(["sleep", "600"], start_new_session=True)
    info = remember(settings, ProcessIdentity.of(head.pid))
    assert stop_cluster(settings) is True
    assert not info.head.is_alive()
    assert not info.temp_dir.exists()
    assert not info.token_file.exists()
    assert attach(settings) is None


def test_a_state_file_from_another_version_is_no_cluster(settings: Settings) -> None:
    settings.home.mkdir(parents=True)
    (settings.home / "cluster.json").write_text('{"pid": 1}')
    assert attach(settings) is None


def test_a_start_that_fails_says_what_ray_said_and_leaves_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys; print('the port is taken'); sys.exit(3)"
    monkeypatch.setattr(embedded, "_command", lambda temp_dir, ports: [sys.executable, "-c", program])
    with pytest.raises(ClusterStartError, match=r"(?s)ended with exit code 3.*the port is taken"):
        start_cluster(settings)
    assert attach(settings) is None
    assert not (settings.home / "ray_token").exists()


def test_a_start_that_hangs_is_given_up(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_command", lambda temp_dir, ports: ["sleep", "600"])
    monkeypatch.setattr(embedded, "START_TIMEOUT_S", 0.2)
    with pytest.raises(ClusterStartError, match="the dashboard did not answer within"):
        start_cluster(settings)
    assert attach(settings) is None


def test_the_nodes_get_our_settings_and_none_of_the_callers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("GRAPHMILL_API_KEY", "a-key-that-stays-with-the-api")
    environment = embedded._environment(settings, tmp_path / "token")
    assert "RAY_ADDRESS" not in environment
    assert "GRAPHMILL_API_KEY" not in environment
    assert environment["GRAPHMILL_HOME"] == str(settings.home)
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


def test_the_token_is_its_owners_alone(settings: Settings) -> None:
    path = embedded._write_token(settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64


def test_free_ports_are_different_and_outside_of_the_kernels_and_rays_ranges() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    assert all(20_000 <= port < 32_000 for port in ports)
