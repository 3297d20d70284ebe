"""The artifacts that a job leaves behind, by name, for the doors: its exported model, whole checkpoints, predictions.

Only whole things are shown: a checkpoint is one when its ``manifest.json`` is there, and so are predictions; an export
is one when its ``config.json`` is, since each is written last, and a manifest is removed first. Only what
``list_artifacts`` lists can be opened, so no name leads out of the job's folder.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from planner.errors import GraphmillError
from workers.training.folder import Folder

_CHECKPOINT = re.compile(r"step-\d+")


class ArtifactNotFoundError(GraphmillError):
    """The job has no artifact of this name."""

    code = "artifact_not_found"


@dataclass(frozen=True)
class Artifact:
    """One file below the job's folder; ``path`` is relative to that, with forward slashes, ``name`` in ``folder``."""

    path: str
    size_bytes: int
    modified_at: datetime
    folder: Folder
    name: str

    def read(self, begin: int, end: int) -> bytes:
        """Bytes ``[begin, end)``."""
        return self.folder.read(self.name, start=begin, end=end)


def list_artifacts(job: Folder) -> list[Artifact]:
    """All artifacts of a job, sorted by path."""
    return sorted(_walk(job), key=lambda artifact: artifact.path)


def committed_checkpoints(job: Folder) -> list[Folder]:
    """The folders of the whole checkpoints, oldest first."""
    return [job / path for path in _committed(job)]


def find_artifact(job: Folder, path: str) -> Artifact:
    """The artifact of that path. Raises ``ArtifactNotFoundError``, also for a path that tries to leave the folder."""
    for artifact in _walk(job):
        if artifact.path == path:
            return artifact
    raise ArtifactNotFoundError(f"the job has no artifact {path!r}; list its artifacts to see their paths", path=path)


def _walk(job: Folder) -> Iterator[Artifact]:
    export = ["export"] if (job / "export").size("config.json") is not None else []
    predictions = ["predictions"] if (job / "predictions").size("manifest.json") is not None else []
    for place in [*_committed(job), *export, *predictions]:
        with suppress(FileNotFoundError):  # training drops old checkpoints while we look
            for file in (job / place).files():
                yield Artifact(
                    path=f"{place}/{file.name}",
                    size_bytes=file.size,
                    modified_at=file.modified_at,
                    folder=job / place,
                    name=file.name,
                )


def _committed(job: Folder) -> list[str]:
    names = [name for name in (job / "checkpoints").names() if _CHECKPOINT.fullmatch(name)]
    by_step = sorted(names, key=lambda name: int(name.removeprefix("step-")))  # longer names come after shorter ones
    places = [f"checkpoints/{name}" for name in by_step]
    return [place for place in places if (job / place).size("manifest.json") is not None]
