"""Checkpoints that are complete or invisible.

Every rank writes its own file into ``step-00000042/``; when all have, rank 0 writes ``manifest.json`` with the size and
digest of each. A folder without a manifest is not a checkpoint: a rank that died half-way leaves something that
``latest`` never shows and the next ``save`` removes.
"""

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from workers.errors import CheckpointInvalidError
from workers.training.folder import Folder

_MANIFEST = "manifest.json"
_KEEP = 2  # the newest, and the one before it should its disk block rot


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: the optimiser step after which it was taken, and how many ranks wrote it."""

    step: int
    world_size: int
    folder: Folder


class CheckpointStore:
    """The checkpoints of one job below ``folder``."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def save(
        self, step: int, *, rank: int, world_size: int, state: dict[str, Any], barrier: Callable[[], None]
    ) -> CheckpointRef:
        """Write this rank's ``state`` and commit when every rank has written. Collective: all ranks call it."""
        target = self._folder / f"step-{step:08d}"
        buffer = io.BytesIO()
        torch.save(state, buffer)
        target.write(_rank_file(rank), buffer.getvalue())
        barrier()
        if rank == 0:
            files = {name: _digest(target, name) for name in map(_rank_file, range(world_size))}
            manifest = {"step": step, "world_size": world_size, "files": files}
            target.write(_MANIFEST, json.dumps(manifest, indent=1).encode())
            self._prune()
        barrier()
        return CheckpointRef(step=step, world_size=world_size, folder=target)

    def latest(self) -> CheckpointRef | None:
        """The committed checkpoint with the highest step, or None."""
        for name in reversed(self._folder.names()):
            reference = _committed(self._folder / name)
            if reference is not None:
                return reference
        return None

    def load(self, reference: CheckpointRef, *, rank: int) -> dict[str, Any]:
        """The state that ``rank`` saved. Raises ``CheckpointInvalidError`` when bytes differ from the manifest."""
        name = _rank_file(rank)
        expected = json.loads(reference.folder.read(_MANIFEST))["files"].get(name)
        if expected is None:
            raise CheckpointInvalidError(
                f"checkpoint {reference.folder.uri} was written by {reference.world_size} ranks and has no state of"
                f" rank {rank}; resume with {reference.world_size} ranks"
            )
        data = reference.folder.read(name)
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise CheckpointInvalidError(
                f"{reference.folder.uri}/{name} does not match the digest in its manifest; remove the folder to fall"
                " back to the checkpoint before it"
            )
        state: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
        return state

    def _prune(self) -> None:
        """Drop what no resume will want: all but the newest few, and what a dead attempt left without a manifest."""
        names = self._folder.names()
        committed = [name for name in names if _committed(self._folder / name) is not None]
        for name in set(names) - set(committed[-_KEEP:]):
            (self._folder / name).remove()


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
    return CheckpointRef(step=manifest["step"], world_size=manifest["world_size"], folder=folder)
