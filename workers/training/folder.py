"""One folder of the job storage, on a disk or behind a URI (``s3://…``), with writes that are whole or absent.

On a disk a write goes to a temporary name, is flushed to the device and renamed; an object store makes a single
upload visible at once. So a reader never sees half a file in either place.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, cast
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem


@dataclass(frozen=True)
class FileInfo:
    """One file directly in a folder; ``modified_at`` is by the storage's clock."""

    name: str
    size: int
    modified_at: datetime


class Folder:
    """A path or URI; ``folder / "name"`` is the folder below it. Nothing is created before the first write."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        # no cache of listings: others write here, too
        self._fs, self._path = fsspec.core.url_to_fs(os.fspath(location), use_listings_cache=False)
        self.is_local = isinstance(self._fs, LocalFileSystem)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.uri.rstrip('/')}/{name}")

    def __repr__(self) -> str:
        return f"Folder({self.uri!r})"

    @property
    def uri(self) -> str:
        """Where it is: a plain path for a disk, else the URI."""
        return self._path if self.is_local else cast(str, self._fs.unstrip_protocol(self._path))

    def write(self, name: str, data: bytes) -> None:
        """Put ``data`` under ``name``; after return it survives a power cut, before that nothing of it is seen."""
        if not self.is_local:
            self._fs.makedirs(self._path, exist_ok=True)
            self._fs.pipe_file(f"{self._path}/{name}", data)
            return
        directory = Path(self._path)
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{name}.{uuid4().hex}"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # who may read is the umask's word
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, directory / name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_directory(directory)

    def read(self, name: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """The bytes ``[start, end)`` under ``name``; all of them by default. Raises ``FileNotFoundError``."""
        return cast(bytes, self._fs.cat_file(f"{self._path}/{name}", start=start, end=end))

    def size(self, name: str) -> int | None:
        """Bytes under ``name``, or None when there is no such file."""
        try:
            return cast(int, self._fs.size(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Names of the entries directly below, sorted; an absent folder has none."""
        try:
            found = self._fs.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(entry).name for entry in found if not PurePosixPath(entry).name.startswith("."))

    def files(self) -> list[FileInfo]:
        """The plain files directly below, sorted by name; an absent folder has none.

        A name with a dot in front is a write that has not ended, or was cut off. Raises ``FileNotFoundError`` when a
        file vanishes meanwhile.
        """
        try:
            found = self._fs.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        plain = (entry for entry in found if entry["type"] == "file" and not entry.get("islink"))
        files = [
            FileInfo(name=PurePosixPath(entry["name"]).name, size=entry["size"], modified_at=self._modified(entry))
            for entry in plain
            if not PurePosixPath(entry["name"]).name.startswith(".")
        ]
        return sorted(files, key=lambda file: file.name)

    def for_arrow(self) -> tuple[Any, str]:
        """(pyarrow's view of the file system, None for a disk; the path in it): how Ray Train takes a place."""
        if self.is_local:
            return None, self._path
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        return PyFileSystem(FSSpecHandler(self._fs)), self._path

    def _modified(self, entry: dict[str, Any]) -> datetime:
        """As the file system says it; some give times without a zone, which then are UTC."""
        told = cast(datetime, self._fs.modified(entry["name"]))
        return told if told.tzinfo else told.replace(tzinfo=UTC)

    def remove_file(self, name: str) -> None:
        """Delete one file; an absent one is fine."""
        try:
            self._fs.rm_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return

    def remove(self) -> None:
        """Delete the folder and all below it; an absent folder is fine."""
        if self._fs.exists(self._path):
            self._fs.rm(self._path, recursive=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
