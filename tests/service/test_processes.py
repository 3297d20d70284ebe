"""Finding and ending process trees, with trees of real processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.processes import ProcessIdentity, end_processes, members_of

MARK = f"GRAPHMILL_TEST_MARK={os.getpid()}"
# The head starts a child of its session and one that leaves it, as Ray starts the drivers of its jobs.
TREE = """
import os, signal, subprocess, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sleep", "601"], start_new_session=True)
print("up", flush=True)
signal.pause()
"""


@pytest.fixture
def start_tree() -> Iterator[Callable[..., ProcessIdentity]]:
    started: list[tuple[ProcessIdentity, subprocess.Popen[str]]] = []

    def start(*arguments: str) -> ProcessIdentity:
        name, _, value = MARK.partition("=")
        head = subprocess.Popen(
            [sys.executable, "-c", TREE, *arguments],
            env={**os.environ, name: value},
            start_new_session=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        identity = ProcessIdentity.of(head.pid)
        started.append((identity, head))
        assert head.stdout is not None
        assert head.stdout.readline() == "up\n"
        return identity

    yield start
    for identity, head in started:
        end_processes(identity, mark=MARK, grace_s=0, kill_s=5)
        head.wait()
        assert head.stdout is not None
        head.stdout.close()


def commands(head: ProcessIdentity) -> set[str]:
    return {process.cmdline()[-1] for process in members_of(head, mark=MARK)}


def test_members_are_found_in_the_session_and_outside_of_it(start_tree: Callable[..., ProcessIdentity]) -> None:
    assert {"600", "601"} <= commands(start_tree())


def test_members_are_found_after_the_head_has_died(start_tree: Callable[..., ProcessIdentity]) -> None:
    head = start_tree()
    os.kill(head.pid, signal.SIGKILL)
    os.waitpid(head.pid, 0)
    assert commands(head) == {"600", "601"}


def test_without_a_known_head_the_mark_finds_all(start_tree: Callable[..., ProcessIdentity]) -> None:
    head = start_tree()
    assert end_processes(None, mark=MARK, grace_s=0.2, kill_s=5) == []
    assert members_of(head, mark=MARK) == []


def test_a_head_that_dies_before_it_can_be_asked_is_no_error(
    start_tree: Callable[..., ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = start_tree()
    kill = os.kill

    def kill_one_that_just_died(pid: int, number: int) -> None:
        if number == signal.SIGTERM:
            kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        kill(pid, number)

    monkeypatch.setattr(os, "kill", kill_one_that_just_died)
    assert end_processes(head, mark=MARK, grace_s=0.2, kill_s=5) == []


def test_nothing_survives_the_end(start_tree: Callable[..., ProcessIdentity]) -> None:
    head = start_tree()
    assert end_processes(head, mark=MARK, grace_s=0.2, kill_s=5) == []
    assert not head.is_alive()
    assert members_of(head, mark=MARK) == []


def test_a_head_that_ignores_sigterm_is_killed(start_tree: Callable[..., ProcessIdentity]) -> None:
    head = start_tree("stubborn")
    started = time.monotonic()
    assert end_processes(head, mark=MARK, grace_s=0.3, kill_s=5) == []
    assert time.monotonic() - started >= 0.3
    assert not head.is_alive()


def test_a_process_under_the_same_pid_is_somebody_else() -> None:
    me = ProcessIdentity.of(os.getpid())
    predecessor = me.model_copy(update={"start_ticks": me.start_ticks - 1})
    assert me.is_alive()
    assert not predecessor.is_alive()
    assert not predecessor.may_lead_a_session()


def test_a_process_of_an_earlier_boot_is_gone() -> None:
    me = ProcessIdentity.of(os.getpid()).model_copy(update={"boot_id": "another"})
    assert not me.is_alive()
    assert not me.may_lead_a_session()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    identity = ProcessIdentity.of(child.pid)
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
    assert not identity.is_alive()
    assert end_processes(identity, mark=MARK, grace_s=0, kill_s=5) == []
    assert not Path(f"/proc/{child.pid}").exists(), "the zombie was left"
    child.wait()
