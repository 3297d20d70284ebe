"""Checkpoints that are complete or invisible.

The ranks that hold something of their own write a file each into ``step-00000042/`` (of a state that all hold alike
rank 0 alone); when they have, rank 0 writes ``manifest.json`` with the size and digest of each. A folder without a
manifest is not a checkpoint: a rank that died half-way leaves something that ``latest`` never shows and the next
``save`` removes.
"""

import hashlib
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from workers.errors import CheckpointInvalidError
from workers.training.folder import Folder

_MANIFEST = "manifest.json"
_FOLDER = re.compile(r"step-(\d{8,})")
_KEEP = 2  # the newest, and the one before it should its disk block rot


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: the optimiser step after which it was taken, and how many ranks wrote it."""

    step: int
    num_writers: int
    folder: Folder


class CheckpointStore:
    """The checkpoints of one job below ``folder``."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def save(
        self, step: int, *, rank: int, num_writers: int, state: dict[str, Any], barrier: Callable[[], None]
    ) -> CheckpointRef:
        """Write this rank's ``state`` and commit when all writers, ranks 0 to ``num_writers`` − 1, have written.

        Collective: all ranks call it, also those that write nothing.
        """
        target = self._folder_of(step)
        if rank < num_writers:
            buffer = io.BytesIO()
            torch.save(state, buffer)
            target.write(_rank_file(rank), buffer.getvalue())
        barrier()
        if rank == 0:
            files = {name: _digest(target, name) for name in map(_rank_file, range(num_writers))}
            manifest = {"step": step, "num_writers": num_writers, "files": files}
            target.write(_MANIFEST, json.dumps(manifest, indent=1).encode())
            self._prune()
        barrier()
        return CheckpointRef(step=step, num_writers=num_writers, folder=target)

    def latest(self) -> CheckpointRef | None:
        """The committed checkpoint with the highest step, or None."""
        return next(self._newest_first(), None)

    def at(self, step: int) -> CheckpointRef:
        """The committed checkpoint of ``step``. Raises ``CheckpointInvalidError`` when there is none."""
        reference = _committed(self._folder_of(step))
        if reference is None:
            raise CheckpointInvalidError(
                f"{self._folder_of(step).uri} is no committed checkpoint as this rank sees it; all ranks need the same"
                " storage"
            )
        return reference

    def load(self, reference: CheckpointRef, *, rank: int) -> dict[str, Any]:
        """The state that ``rank`` saved, on the CPU whatever it was on before.

        Raises ``CheckpointInvalidError`` when bytes differ from the manifest.
        """
        name = _rank_file(rank)
        expected = json.loads(reference.folder.read(_MANIFEST))["files"].get(name)
        if expected is None:
            raise CheckpointInvalidError(
                f"checkpoint {reference.folder.uri} was written by {reference.num_writers} ranks and has no state of"
                f" rank {rank}; resume with {reference.num_writers} ranks"
            )
        data = reference.folder.read(name)
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise CheckpointInvalidError(
                f"{reference.folder.uri}/{name} does not match the digest in its manifest; remove the folder to fall"
                " back to the checkpoint before it"
            )
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return state

    def _prune(self) -> None:
        """Drop what no resume will want: all but the newest few, and what a dead attempt left without a manifest."""
        kept = {reference.step for reference in itertools.islice(self._newest_first(), _KEEP)}
        for step in set(self._steps()) - kept:
            self._folder_of(step).remove()

    def _newest_first(self) -> Iterator[CheckpointRef]:
        """Committed checkpoints, by number: names of different length do not sort by step."""
        found = map(_committed, map(self._folder_of, sorted(self._steps(), reverse=True)))
        return (reference for reference in found if reference is not None)

    def _steps(self) -> list[int]:
        """The steps that have a folder, committed or not."""
        return [int(match[1]) for match in map(_FOLDER.fullmatch, self._folder.names()) if match]

    def _folder_of(self, step: int) -> Folder:
        return self._folder / f"step-{step:08d}"


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def _digest(folder: Folder, name: str) -> dict[str, Any]:
    data = folder.read(name)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _committed(folder: Folder) -> CheckpointRef | None:
    try:
        manifest = json.loads(folder.read(_MANIFEST))
    except FileNotFoundError:
        return None
    if any(folder.size(name) != entry["bytes"] for name, entry in manifest["files"].items()):
        return None
    return CheckpointRef(step=manifest["step"], num_writers=manifest["num_writers"], folder=folder)
