"""One folder of the job storage, on a disk or behind a URI (``s3://…``), with writes that are whole or absent.

On a disk a write goes to a temporary name, is flushed to the device and renamed; an object store makes a single
upload visible at once. So a reader never sees half a file in either place.
"""

import os
from pathlib import Path, PurePosixPath
from typing import cast
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Folder:
    """A path or URI; ``folder / "name"`` is the folder below it. Nothing is created before the first write."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self._fs, self._path = fsspec.core.url_to_fs(os.fspath(location))
        self._local = isinstance(self._fs, LocalFileSystem)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(f"{self.uri.rstrip('/')}/{name}")

    def __repr__(self) -> str:
        return f"Folder({self.uri!r})"

    @property
    def uri(self) -> str:
        """Where it is: a plain path for a disk, else the URI."""
        return self._path if self._local else cast(str, self._fs.unstrip_protocol(self._path))

    def write(self, name: str, data: bytes) -> None:
        """Put ``data`` under ``name``; after return it survives a power cut, before that nothing of it is seen."""
        if not self._local:
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

    def read(self, name: str) -> bytes:
        """The bytes under ``name``. Raises ``FileNotFoundError``."""
        return cast(bytes, self._fs.cat_file(f"{self._path}/{name}"))

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
