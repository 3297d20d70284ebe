"""Finding and ending every process of a cluster that we started, however deep and whatever it re-parented to.

A cluster is named by its *head*: the first process, which leads a session of its own. Members are the processes of
that session, their descendants, and processes that left both (Ray starts each job's driver in a new session) but still
carry the cluster's mark in their environment. Where the head is not known (None), the mark alone finds them. A pid
alone names nobody, since the kernel re-uses it: an identity is the pid, when that process started, and the boot of the
machine.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from planner.frozen import Frozen

_POLL_S = 0.05
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ProcessIdentity(Frozen):
    """One process for all time: its pid, its start in clock ticks since the boot, and the id of that boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """Who has ``pid`` now. Raises ``FileNotFoundError`` when nobody has."""
        return cls(pid=pid, start_ticks=_state_and_start(pid)[1], boot_id=_BOOT_ID.read_text().strip())

    def is_alive(self) -> bool:
        """Whether this very process still runs. A zombie does not; a successor under the same pid is another."""
        try:
            return ProcessIdentity.of(self.pid) == self and _state_and_start(self.pid)[0] != "Z"
        except OSError:
            return False

    def may_lead_a_session(self) -> bool:
        """Whether a session of this number can be this process's: its number is not re-used while a member lives."""
        try:
            return ProcessIdentity.of(self.pid) == self
        except OSError:
            return self.boot_id == _BOOT_ID.read_text().strip()


def members_of(head: ProcessIdentity | None, *, mark: str) -> list[psutil.Process]:
    """Living processes of the cluster. ``mark`` is a ``NAME=value`` that only they have in their environment."""
    found = {process.pid: process for process in _candidates(head, mark.encode())}
    for process in tuple(found.values()):
        with suppress(psutil.Error):
            found.update((child.pid, child) for child in process.children(recursive=True))
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _runs(process)]


def end_processes(head: ProcessIdentity | None, *, mark: str, grace_s: float, kill_s: float) -> list[int]:
    """Ask the head to end all (SIGTERM), after ``grace_s`` kill whoever is left (SIGKILL), wait up to ``kill_s``.

    Returns the pids that outlived even that (a process stuck in the kernel): empty when the machine is clean.
    """
    if head is not None and head.is_alive():
        with suppress(ProcessLookupError):
            os.kill(head.pid, signal.SIGTERM)
        _wait_until_gone(head, mark=mark, timeout_s=grace_s)
    deadline = time.monotonic() + kill_s
    while left := members_of(head, mark=mark):
        if time.monotonic() > deadline:
            return [process.pid for process in left]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(_POLL_S)
        _reap(head)
    _reap(head)
    return []


def _wait_until_gone(head: ProcessIdentity, *, mark: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        _reap(head)
        if not head.is_alive() and not members_of(head, mark=mark):
            return
        time.sleep(_POLL_S)


def _reap(head: ProcessIdentity | None) -> None:
    """Collect the head's exit status when it is a child of this process; it would stay a zombie otherwise."""
    with suppress(OSError):  # it is not ours, or it is gone: between two looks, too
        if head is not None and ProcessIdentity.of(head.pid) == head:
            os.waitpid(head.pid, os.WNOHANG)


def _candidates(head: ProcessIdentity | None, mark: bytes) -> Iterator[psutil.Process]:
    session = head.pid if head is not None and head.may_lead_a_session() else None
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            in_session = os.getsid(process.pid) == session
            if in_session or mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                yield process


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _state_and_start(pid: int) -> tuple[str, int]:
    """Fields 3 and 22 of ``/proc/PID/stat``; the command before them may hold spaces and brackets."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])
