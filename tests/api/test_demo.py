"""The demo as a process that is told to end. Its server is played by a few lines."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import json, signal, sys, time
def end(*_): open("ended", "w").close(); sys.exit({code})
signal.signal(signal.SIGINT, end)
print(json.dumps({{"api": "http://127.0.0.1:9", "dashboard": "http://fake"}}), flush=True)
time.sleep(60)
"""
DEMO = """
import sys
import api.demo as demo
demo._SERVER = (sys.executable, "-c", sys.argv[1])
def play(*_, **__):
    print("playing", flush=True)
    if sys.argv[2] == "finish": return demo.JobState.FINISHED
    __import__("time").sleep(60)
demo._run_job = play
sys.exit(demo.main())
"""


def demo(folder: Path, monkeypatch: pytest.MonkeyPatch, *, server_code: int, how: str) -> "subprocess.Popen[str]":
    monkeypatch.setenv("GRAPHMILL_HOME", str(folder / "home"))
    monkeypatch.setenv("GRAPHMILL_API_KEY", "a-key-of-the-demo")
    command = [sys.executable, "-c", DEMO, SERVER.format(code=server_code), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_demo_that_is_told_to_end_ends_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, code: int
) -> None:
    with demo(tmp_path, monkeypatch, server_code=0, how="wait") as process:
        assert process.stdout is not None
        while "playing" not in process.stdout.readline():
            pass
        process.send_signal(sent)
        process.communicate(timeout=30)
    assert process.returncode == code
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("server_code", "code"), [(0, 0), (3, 1)])
def test_a_server_that_ends_badly_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_code: int, code: int
) -> None:
    with demo(tmp_path, monkeypatch, server_code=server_code, how="finish") as process:
        process.communicate(timeout=30)
    assert process.returncode == code
