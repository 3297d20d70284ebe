"""Programs of a test that must clean up after themselves: they are asked to end, and hear it when the test dies.

``run_unwinding`` is the side of the test, ``unwind_when_asked`` that of the program.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_GRACE_S = 60.0  # a cluster of two nodes ends in a few seconds, in ten times that on a crowded machine


def run_unwinding(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and capture what it prints. Whatever ends the wait asks the program to end, and waits for that.

    So do a timeout, which raises ``TimeoutExpired``, and Ctrl-C. When this process dies, the kernel asks the program.
    """
    parent = os.getpid()

    def hear_of_the_parents_death() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above took hold
            os._exit(1)

    # A session of its own: Ctrl-C in a terminal reaches the program through us, once.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_of_the_parents_death,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            process.terminate()
            try:
                process.communicate(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def unwind_when_asked() -> None:
    """Make the first SIGTERM or SIGINT leave this program through its ``with`` blocks, and ignore all after it."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _unwind)


def _unwind(number: int, _frame: FrameType | None) -> None:
    for other in (signal.SIGTERM, signal.SIGINT):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
