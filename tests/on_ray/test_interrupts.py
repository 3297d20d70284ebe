"""A test that is interrupted or killed leaves neither the programs that it started nor its network namespaces."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.netns import needs_namespaces
from tests.kit.ray_cluster import ROOT

PROGRAM = """
import pathlib, sys, time
from tests.kit.unwinding import unwind_when_asked
unwind_when_asked()
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "runs").touch()
    time.sleep(100)
finally:
    (folder / "unwound").touch()
"""
TEST = f"""
import sys
from tests.kit.unwinding import run_unwinding
run_unwinding([sys.executable, "-c", {PROGRAM!r}, sys.argv[1]], timeout_s=float(sys.argv[2]))
"""
TEST_IN_NAMESPACES = """
import pathlib, sys, time
from tests.kit.netns import namespaces
with namespaces(1) as (space,):
    (pathlib.Path(sys.argv[1]) / "name").write_text(space.name)
    (pathlib.Path(sys.argv[1]) / "runs").touch()
    time.sleep(100)
"""
ENDINGS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]


def start(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def wait_until(is_so: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", ENDINGS)
def test_a_program_unwinds_however_its_test_ends(number: signal.Signals, tmp_path: Path) -> None:
    with start(TEST, str(tmp_path), "60") as test:
        wait_until((tmp_path / "runs").exists)
        test.send_signal(number)
    wait_until((tmp_path / "unwound").exists)
    assert test.returncode != 0, "it was ended, it did not come to its end"


def test_a_program_that_takes_too_long_unwinds(tmp_path: Path) -> None:
    with start(TEST, str(tmp_path), "1.5") as test:
        assert test.wait(timeout=60) == 1
    assert (tmp_path / "unwound").exists() == (tmp_path / "runs").exists()


@pytest.mark.netns
@pytest.mark.parametrize("number", ENDINGS)
def test_namespaces_go_however_their_test_ends(number: signal.Signals, tmp_path: Path) -> None:
    needs_namespaces()
    with start(TEST_IN_NAMESPACES, str(tmp_path)) as test:
        wait_until((tmp_path / "runs").exists)
        name = (tmp_path / "name").read_text()
        assert Path("/run/netns", name).exists()
        test.send_signal(number)
    wait_until(lambda: not Path("/run/netns", name).exists())
    wait_until(lambda: not Path("/sys/class/net", f"{name[:-2]}v0").exists())
