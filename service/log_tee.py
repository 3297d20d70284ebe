"""Copies everything a process prints, from Python, C or its children, into a file as well.

Ray keeps a driver's output until its cluster ends, and shows it on its dashboard. The job's own log has to outlive the
cluster, so the two standard streams go through a pipe and on to both.
"""

import os
import sys
import threading
from pathlib import Path

_STDOUT, _STDERR = 1, 2
_CHUNK_BYTES = 65_536


class LogTee:
    """Standard output and error of this process, copied into ``path`` from ``start`` to ``stop``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread: threading.Thread | None = None
        self._original: tuple[int, int] | None = None

    def start(self) -> None:
        """Begin to copy; the file is appended to."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        _flush()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._original = os.dup(_STDOUT), os.dup(_STDERR)
        source, sink = os.pipe()
        os.dup2(sink, _STDOUT)
        os.dup2(sink, _STDERR)
        os.close(sink)
        self._thread = threading.Thread(target=_copy, args=(source, (self._original[0], file)), daemon=True)
        self._thread.start()

    def stop(self, *, timeout_s: float = 2.0) -> None:
        """Give the streams back and wait until all that was printed is written.

        A child that still holds the streams keeps the pipe open; it is waited for no longer than ``timeout_s``.
        """
        if self._original is None or self._thread is None:
            return
        _flush()
        for target, original in zip((_STDOUT, _STDERR), self._original, strict=True):
            os.dup2(original, target)  # the last writers of the pipe in this process close with this
        self._thread.join(timeout_s)
        self._original = self._thread = None


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _copy(source: int, targets: tuple[int, ...]) -> None:
    with os.fdopen(source, "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            for target in targets:
                _write_all(target, chunk)
    for target in targets:
        os.close(target)


def _write_all(target: int, data: bytes) -> None:
    """Write all of it; a target that takes no more (a full disk) must not stop the other."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(target, view) :]
    except OSError:
        return
