"""A job's log in the storage: written by its driver, read in pieces by the doors.

On a disk it is one file that grows, ``driver.log``. An object store has nothing that grows, so there the driver's log
lies in parts, ``driver-BEGIN.log``, of which the last is replaced until it is full. Readers see one text either way.
"""

import logging
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planner.errors import GraphmillError
from workers.training.folder import FileInfo, Folder

LOG_NAME = "driver.log"
COPY_EVERY_S = 1.0
PART_BYTES = 262_144  # chosen: the last part is sent again whenever the log has grown
_QUIET_S = 1.5  # a driver writes a few more lines while it leaves, after its job has ended
_TAIL_WINDOW = 4 * 1_048_576  # a tail looks at no more than this, however long the lines are
_PART = re.compile(r"driver(?:-(\d{16}))?\.log")
_LAST_COPY_S = 5.0

_log = logging.getLogger(__name__)


class LogOffsetError(GraphmillError):
    """The log is shorter than the offset that was asked for."""

    code = "log_offset_beyond_end"


@dataclass(frozen=True)
class LogPiece:
    """Bytes ``[offset, next_offset)`` of the log.

    ``at_end`` if there were no more when it was read, ``is_quiet`` if nothing was written for a while before that.
    """

    text: str
    offset: int
    next_offset: int
    at_end: bool
    is_quiet: bool


class LogCopier:
    """Copies the growing file ``path`` behind what ``folder`` already holds of the log, from ``start`` to ``stop``."""

    def __init__(self, path: Path, folder: Folder) -> None:
        self._path, self._folder = path, folder
        self._first = log_size(folder)  # of an earlier driver of the job
        self._begin = self._copied = 0  # of the part that is not full, in the file; and how much of it is there
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-copier", daemon=True)

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def stop(self) -> None:
        """Copy what is still to be copied; a storage that does not answer is not waited for much longer."""
        self._done.set()
        self._thread.join(_LAST_COPY_S)

    def _run(self) -> None:
        while not self._done.wait(COPY_EVERY_S):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        try:
            while self._copy_part():
                pass
        except Exception:  # whatever a storage raises: the log must not end the job, and the next round tries again
            _log.exception("the log could not be copied to %s", self._folder.uri)

    def _copy_part(self) -> bool:
        """Copy the part that is not full; whether it is now, so that the next one may have something."""
        with self._path.open("rb") as file:
            file.seek(self._begin)
            data = file.read(PART_BYTES)
        if len(data) > self._copied:
            self._folder.write(f"driver-{self._first + self._begin:016d}.log", data)
            self._copied = len(data)
        if len(data) < PART_BYTES:
            return False
        self._begin, self._copied = self._begin + PART_BYTES, 0
        return True


def read_log(folder: Folder, *, offset: int, limit: int) -> LogPiece:
    """Up to ``limit`` bytes from ``offset``, cut after a line where there is one, else between two characters.

    A log that is not there yet reads as empty. Raises ``LogOffsetError``.
    """
    parts = _parts(folder)
    size = _size(parts)
    if offset > size:
        found = f"the log has {size} bytes" if parts else "there is no log yet"
        raise LogOffsetError(f"{found}, asked from {offset} on; start again at 0", size=size)
    data = _read(folder, parts, begin=offset, end=min(size, offset + limit))
    at_end = offset + len(data) >= size
    data = _whole_characters(data) if at_end else _whole_lines(data)
    return LogPiece(
        text=data.decode(errors="replace"),
        offset=offset,
        next_offset=offset + len(data),
        at_end=at_end,
        is_quiet=not parts or _is_quiet(folder, parts[-1][1]),
    )


def tail_offset(folder: Folder, *, lines: int) -> int:
    """Where the last ``lines`` lines begin (looking back at most ``_TAIL_WINDOW`` bytes)."""
    parts = _parts(folder)
    size = _size(parts)
    start = max(0, size - _TAIL_WINDOW)
    window = _read(folder, parts, begin=start, end=size)
    position = len(window)
    if window.endswith(b"\n"):
        position -= 1
    for _ in range(lines):
        position = window.rfind(b"\n", 0, position)
        if position < 0:
            return start
    return start + position + 1


def log_size(folder: Folder) -> int:
    """Bytes of the log so far."""
    return _size(_parts(folder))


def _parts(folder: Folder) -> list[tuple[int, FileInfo]]:
    """(first byte, file) of every part, in order."""
    found = ((_PART.fullmatch(file.name), file) for file in folder.files())
    return sorted(((int(name[1] or 0), file) for name, file in found if name), key=lambda part: part[0])


def _size(parts: list[tuple[int, FileInfo]]) -> int:
    return parts[-1][0] + parts[-1][1].size if parts else 0


def _read(folder: Folder, parts: list[tuple[int, FileInfo]], *, begin: int, end: int) -> bytes:
    """Bytes ``[begin, end)`` of all parts joined; a part may have grown since it was listed."""
    pieces = [
        folder.read(file.name, start=max(0, begin - first), end=min(file.size, end - first))
        for first, file in parts
        if begin < first + file.size and first < end
    ]
    return b"".join(pieces)


def _is_quiet(folder: Folder, last: FileInfo) -> bool:
    silence_s = (datetime.now(UTC) - last.modified_at).total_seconds()
    patience_s = _QUIET_S if folder.is_local else _QUIET_S + 2 * COPY_EVERY_S
    return not 0 <= silence_s < patience_s  # a time to come is that of a clock which is not ours


def _whole_lines(data: bytes) -> bytes:
    end = data.rfind(b"\n") + 1
    return data[:end] if end else _whole_characters(data)


def _whole_characters(data: bytes) -> bytes:
    """Drop the beginning of a character whose rest is still to come."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # the middle of a character: its first byte is further left
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return data[:-back] if length > back else data
    return data
