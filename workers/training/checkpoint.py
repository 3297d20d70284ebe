"""Checkpoints that are complete or invisible, written by all ranks together and read back under any other plan.

Tensors go through ``torch.distributed.checkpoint`` into ``step-00000042/``: each rank writes what it holds, what
several hold alike is written once, and a sharded tensor is put together from its parts by whoever asks for other parts.
Then rank 0 writes ``manifest.json`` with the size and digest of every file, and the small values that all ranks share.
A folder without a manifest is not a checkpoint: a rank that died half-way leaves something that ``latest`` never shows
and the next ``save`` removes.
"""

import hashlib
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from workers.comm.axis import Axis
from workers.errors import CheckpointInvalidError
from workers.training.folder import Folder

_MANIFEST = "manifest.json"
_METADATA = ".metadata"  # torch's table of contents
_FOLDER = re.compile(r"step-(\d{8,})")
_KEEP = 2  # the newest, and the one before it should its disk block rot


@dataclass(frozen=True)
class CheckpointRef:
    """A committed checkpoint: the optimiser step after which it was taken, and the ``values`` that went with it."""

    step: int
    folder: Folder
    values: Mapping[str, Any] = field(default_factory=dict)


class CheckpointStore:
    """The checkpoints of one job below ``folder``. ``axis`` holds all ranks of the run and can send from ``device``."""

    def __init__(self, folder: Folder, *, axis: Axis, device: torch.device) -> None:
        self._folder = folder
        self._axis = axis
        self._device = device

    def save(self, step: int, *, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> CheckpointRef:
        """Write this rank's ``tensors`` by name and commit when all ranks have written. Collective.

        A name means the same tensor on all ranks that give it. ``values`` (of JSON types) are those of the first rank.
        """
        target = self._folder_of(step)
        if self._axis.index == 0:
            _remove(target)  # what a dead attempt left there
        self._axis.barrier()
        with self._together() as ranks:
            dcp.save(dict(tensors), storage_writer=FsspecWriter(target.uri), **ranks)
        self._axis.barrier()
        if self._axis.index == 0:
            files = {name: _digest(target, name) for name in (*target.names(), _METADATA)}
            manifest = {"step": step, "values": dict(values), "files": files}
            target.write(_MANIFEST, json.dumps(manifest, indent=1).encode())
            self._prune()
        self._axis.barrier()
        return CheckpointRef(step=step, folder=target, values=values)

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

    def load(self, reference: CheckpointRef, *, tensors: Mapping[str, Tensor]) -> None:
        """Fill ``tensors`` (this rank's, of any plan) by name. Collective.

        Raises ``CheckpointInvalidError`` on all ranks when bytes differ from the manifest, and when a tensor is not
        there or has another shape.
        """
        self._check_bytes(reference)
        reader = FsspecReader(reference.folder.uri)
        _check_contents(reader, reference, tensors)
        with self._together() as ranks:
            dcp.load(dict(tensors), storage_reader=reader, **ranks)

    @contextmanager
    def _together(self) -> Iterator[dict[str, Any]]:
        """How torch is told which ranks take part. It warns a rank that is alone, though it was told so."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
            yield {"process_group": self._axis.group, "no_dist": self._axis.group is None}

    def _check_bytes(self, reference: CheckpointRef) -> None:
        """Every rank looks at its share of the files."""
        files = json.loads(reference.folder.read(_MANIFEST))["files"]
        own = sorted(files)[self._axis.index :: self._axis.size]
        rotten = [name for name in own if _digest(reference.folder, name) != files[name]]
        found = torch.tensor([len(rotten)], device=self._device)
        self._axis.sum_in_place(found)
        if int(found):
            raise CheckpointInvalidError(
                f"{reference.folder.uri}: {', '.join(rotten) or 'files that other ranks read'} do not match the digest"
                " in the manifest; remove the folder to fall back to the checkpoint before it"
            )

    def _prune(self) -> None:
        """Drop what no resume will want: all but the newest few, and what a dead attempt left without a manifest."""
        kept = {reference.step for reference in itertools.islice(self._newest_first(), _KEEP)}
        for step in set(self._steps()) - kept:
            _remove(self._folder_of(step))

    def _newest_first(self) -> Iterator[CheckpointRef]:
        """Committed checkpoints, by number: names of different length do not sort by step."""
        found = map(_committed, map(self._folder_of, sorted(self._steps(), reverse=True)))
        return (reference for reference in found if reference is not None)

    def _steps(self) -> list[int]:
        """The steps that have a folder, committed or not."""
        return [int(match[1]) for match in map(_FOLDER.fullmatch, self._folder.names()) if match]

    def _folder_of(self, step: int) -> Folder:
        return self._folder / f"step-{step:08d}"


def _check_contents(reader: FsspecReader, reference: CheckpointRef, tensors: Mapping[str, Tensor]) -> None:
    saved = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        size = getattr(saved.get(name), "size", None)
        if size != tensor.shape:
            raise CheckpointInvalidError(
                f"checkpoint {reference.folder.uri} has {name} of shape {None if size is None else tuple(size)}, the"
                f" model here wants {tuple(tensor.shape)}: it belongs to another model"
            )


def _digest(folder: Folder, name: str) -> dict[str, Any]:
    data = folder.read(name)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _remove(folder: Folder) -> None:
    """The manifest first: what is removed half-way is no checkpoint any more."""
    folder.remove_file(_MANIFEST)
    folder.remove()


def _committed(folder: Folder) -> CheckpointRef | None:
    try:
        manifest = json.loads(folder.read(_MANIFEST))
    except FileNotFoundError:
        return None
    if any(folder.size(name) != entry["bytes"] for name, entry in manifest["files"].items()):
        return None
    return CheckpointRef(step=manifest["step"], folder=folder, values=manifest["values"])
