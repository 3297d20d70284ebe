"""The files that a job leaves behind, read for the doors: its log in pieces, its artifacts by name.

Only whole things are shown: a checkpoint is one when its ``manifest.json`` is there, an export when its ``config.json``
is, since each is written last. Only what ``list_artifacts`` lists can be opened, so no name leads out of the job's
folder.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planner.errors import GraphmillError

_QUIET_S = 1.5  # a driver writes a few more lines while it leaves, after its job has ended
_TAIL_WINDOW = 4 * 1_048_576  # a tail looks at no more than this, however long the lines are


class ArtifactNotFoundError(GraphmillError):
    """The job has no artifact of this name."""

    code = "artifact_not_found"


class LogOffsetError(GraphmillError):
    """The log is shorter than the offset that was asked for."""

    code = "log_offset_beyond_end"


@dataclass(frozen=True)
class Artifact:
    """One file under the job's folder; ``path`` is relative to it, with forward slashes."""

    path: str
    size_bytes: int
    modified_at: datetime
    file: Path


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


def list_artifacts(job_dir: Path) -> list[Artifact]:
    """All artifacts of a job, sorted by path."""
    return sorted(_walk(job_dir), key=lambda artifact: artifact.path)


def committed_checkpoints(job_dir: Path) -> list[Path]:
    """The folders of the whole checkpoints, oldest first: their names sort by step."""
    return sorted(manifest.parent for manifest in (job_dir / "checkpoints").glob("step-*/manifest.json"))


def find_artifact(job_dir: Path, path: str) -> Artifact:
    """The artifact of that path. Raises ``ArtifactNotFoundError``, also for a path that tries to leave the folder."""
    for artifact in _walk(job_dir):
        if artifact.path == path:
            return artifact
    raise ArtifactNotFoundError(f"the job has no artifact {path!r}; list its artifacts to see their paths", path=path)


def read_log(file: Path, *, offset: int, limit: int) -> LogPiece:
    """Up to ``limit`` bytes from ``offset``, cut after a line where there is one, else between two characters.

    A log that is not there yet reads as empty. Raises ``LogOffsetError``.
    """
    try:
        with file.open("rb") as log:
            status = os.fstat(log.fileno())
            size, silence_s = status.st_size, time.time() - status.st_mtime
            if offset > size:
                raise LogOffsetError(f"the log has {size} bytes, asked from {offset} on; start again at 0", size=size)
            log.seek(offset)
            data = log.read(limit)
    except FileNotFoundError:
        if offset:
            raise LogOffsetError(f"there is no log yet, asked from {offset} on; start at 0", size=0) from None
        return LogPiece(text="", offset=0, next_offset=0, at_end=True, is_quiet=True)
    at_end = offset + len(data) >= size
    data = _whole_characters(data) if at_end else _whole_lines(data)
    return LogPiece(
        text=data.decode(errors="replace"),
        offset=offset,
        next_offset=offset + len(data),
        at_end=at_end,
        is_quiet=not 0 <= silence_s < _QUIET_S,  # a time to come is that of a clock which is not ours
    )


def tail_offset(file: Path, *, lines: int) -> int:
    """Where the last ``lines`` lines begin (looking back at most ``_TAIL_WINDOW`` bytes)."""
    try:
        with file.open("rb") as log:
            size = os.fstat(log.fileno()).st_size
            start = max(0, size - _TAIL_WINDOW)
            log.seek(start)
            window = log.read(size - start)
    except FileNotFoundError:
        return 0
    position = len(window)
    if window.endswith(b"\n"):
        position -= 1
    for _ in range(lines):
        position = window.rfind(b"\n", 0, position)
        if position < 0:
            return start
    return start + position + 1


def _walk(job_dir: Path) -> Iterator[Artifact]:
    export = job_dir / "export"
    for folder in [*committed_checkpoints(job_dir), *([export] if (export / "config.json").is_file() else [])]:
        with suppress(FileNotFoundError):  # training drops old checkpoints while we look
            yield from _files_of(folder, job_dir)


def _files_of(folder: Path, job_dir: Path) -> Iterator[Artifact]:
    """The plain files right in a folder; a name with a dot in front is a write that has not ended, or was cut off."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            file = Path(entry.path)
            yield Artifact(
                path=file.relative_to(job_dir).as_posix(),
                size_bytes=status.st_size,
                modified_at=datetime.fromtimestamp(status.st_mtime, UTC),
                file=file,
            )


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
