"""The API process as a process: signals, crashes, and a second one. The embedded cluster is played by a fake."""

import json
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.client import GraphmillClient
from api.main import _listening
from api.server_state import claim_home, last_server_state, read_server_state
from api.server_stop import stop_everything
from service.settings import Settings
from tests.kit.builders import job_document

PROCESS = """
import os, sys, time
import api.embedded_cluster as embedded
import api.main as main
from tests.kit.fake_cluster import FakeCluster

PLAY = os.environ.get("PLAY", "")
clusters = ["one of before"] if "running" in PLAY else []

class Info:
    dashboard_url = "http://fake"
    def token(self): return "token"

def start(settings):
    print("cluster started", flush=True)
    clusters.append("ours")
    time.sleep(60 if "slow" in PLAY else 0)
    return Info()

def stop(settings): print("cluster ended", flush=True); return True
def broken(backend): raise RuntimeError("a fault of ours")

embedded.start_cluster, embedded.RayCluster, main.stop_cluster = start, lambda url, token: FakeCluster(), stop
embedded.attach = lambda settings: Info() if clusters else None
if "broken" in PLAY: main.create_app = broken
sys.exit(main.main(sys.argv[1:]))
"""

Serve = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("GRAPHMILL_HOME", str(tmp_path))
    monkeypatch.setenv("GRAPHMILL_PORT", "0")
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", PROCESS, "--json", *arguments]
        root = Path(__file__).parents[2]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root, start_new_session=True
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def starting(process: "subprocess.Popen[str]") -> None:
    """Wait until it starts its cluster."""
    assert process.stdout is not None
    assert process.stdout.readline() == "cluster started\n"


def serving(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Wait until it serves; its addresses."""
    starting(process)
    assert process.stdout is not None
    addresses: dict[str, Any] = json.loads(process.stdout.readline())
    return addresses


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_api_and_its_cluster(serve: Serve, settings: Settings, sent: signal.Signals) -> None:
    process = serve()
    addresses = serving(process)
    assert httpx.get(f"{addresses['api']}/livez", trust_env=False).status_code == 200
    assert read_server_state(settings) is not None
    process.send_signal(sent)
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "cluster ended\n", "")
    assert last_server_state(settings) is None


def test_a_kill_leaves_the_cluster_and_the_next_process_goes_on(serve: Serve, settings: Settings) -> None:
    first = serve()
    url = serving(first)["api"]
    with GraphmillClient(settings=settings) as client:
        assert client.url == url
        job = client.submit(job_document(resources={"num_workers": 99}))
    first.kill()
    assert first.communicate(timeout=20)[0] == ""
    assert read_server_state(settings) is None
    serving(serve())
    with GraphmillClient(settings=settings) as client:
        assert client.url != url
        assert client.job(job.id).spec == job.spec


def test_a_second_process_for_one_home_is_refused(serve: Serve) -> None:
    first = serve()
    url = serving(first)["api"]
    second = serve()
    output, errors = second.communicate(timeout=20)
    assert (second.returncode, output) == (2, "")
    assert url in errors
    assert "graphmill stop" in errors


def test_a_process_that_only_starts_yet_keeps_a_second_one_out(
    serve: Serve, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLAY", "slow")
    first = serve()
    starting(first)
    output, errors = serve().communicate(timeout=20)
    assert output == ""
    assert f"process {first.pid}" in errors


def test_stop_also_ends_a_process_that_only_starts_yet(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY", "slow")
    process = serve()
    starting(process)
    reaper = threading.Thread(target=process.wait)
    reaper.start()
    assert stop_everything()["api"]
    reaper.join(20)
    assert process.returncode == 0


def test_a_database_that_cannot_be_opened_is_told_before_a_cluster_is_touched(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHMILL_DATABASE_URL", "sqlite:////proc/none/graphmill.db")
    process = serve()
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (2, "")
    assert "cannot open the database" in errors


@pytest.mark.parametrize(("play", "ended"), [("broken running", ""), ("broken", "cluster ended\n")])
def test_a_fault_of_ours_ends_only_the_cluster_that_we_started(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, play: str, ended: str
) -> None:
    monkeypatch.setenv("PLAY", play)
    process = serve()
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (1, f"cluster started\n{ended}")
    assert "a fault of ours" in errors


def test_a_signal_ends_the_cluster_also_when_it_was_there_before(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAY", "running")
    process = serve()
    serving(process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "cluster ended\n"


def test_a_home_is_its_owners_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "new")
    with claim_home(settings):
        assert stat.S_IMODE(settings.home.stat().st_mode) == 0o700


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_that_is_told_can_be_opened(tmp_path: Path, host: str, shown: str) -> None:
    with _listening(Settings(home=tmp_path, host=host, port=0)) as (listener, url):
        assert url == f"http://{shown}:{listener.getsockname()[1]}"
        with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)):
            pass


def test_serve_runs_our_own_server_also_beside_a_folder_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").touch()
    (tmp_path / "api" / "main.py").write_text("print('a stranger')")
    monkeypatch.setenv("GRAPHMILL_HOME", str(tmp_path / "home"))
    command = [str(Path(sys.executable).parent / "graphmill"), "serve", "--port", "0", "--host", "no.such.host.invalid"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot listen" in done.stderr


def test_a_taken_port_is_told_before_a_cluster_is_started(serve: Serve) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        process = serve("--port", str(other.getsockname()[1]))
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (2, "")
    assert "cannot listen" in errors
    assert "GRAPHMILL_PORT" in errors


def test_sqlite_with_an_external_cluster_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHMILL_RAY_DASHBOARD", "http://head:8265")
    process = serve()
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "PostgreSQL" in errors


def test_an_open_stream_does_not_hold_up_the_end(serve: Serve, settings: Settings) -> None:
    process = serve()
    serving(process)
    with GraphmillClient(settings=settings, patience_s=0.2) as client:
        job = client.submit(job_document(resources={"num_workers": 99}))
        stream = client.follow(job.id)
        next(stream)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "cluster ended\n", "")


def test_stop_ends_a_serving_process_and_says_what_ran(serve: Serve, settings: Settings) -> None:
    process = serve()
    serving(process)
    reaper = threading.Thread(target=process.wait)  # its parent has to collect it before it is gone
    reaper.start()
    assert stop_everything() == {"api": True, "cluster": True}
    reaper.join(20)
    assert process.returncode == 0
    assert stop_everything() == {"api": False, "cluster": False}


def test_ctrl_c_while_following_leaves_the_job_alone(serve: Serve, settings: Settings) -> None:
    serving(serve())
    with GraphmillClient(settings=settings) as client:
        job = client.submit(job_document(resources={"num_workers": 99}))
        command = [sys.executable, "-m", "api.cli", "submit", "-", "--key", "k", "--follow", "--json"]
        follower = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert follower.stdin is not None
        assert follower.stdout is not None
        follower.stdin.write(json.dumps(job_document(resources={"num_workers": 99})))
        follower.stdin.close()
        follower.stdin = None
        job_id = json.loads(follower.stdout.readline())["job_id"]
        follower.send_signal(signal.SIGINT)
        _, errors = follower.communicate(timeout=20)
        assert follower.returncode == 130
        assert "Traceback" not in errors
        assert client.job(job_id).state == job.state == "PENDING"
