"""Checkpoints are complete or invisible."""

import json
import zipfile
from pathlib import Path

import pytest
import torch

from workers.errors import CheckpointInvalidError
from workers.training.checkpoint import CheckpointRef, CheckpointStore
from workers.training.folder import Folder


def no_barrier() -> None:
    """One process stands for all ranks: nobody to wait for."""


def save(store: CheckpointStore, step: int, value: float = 1.0) -> CheckpointRef:
    state = {"weight": torch.full((3,), value), "epoch": step}
    return store.save(step, rank=0, num_writers=1, state=state, barrier=no_barrier)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    save(store, 7, 2.5)
    reference = store.latest()
    assert reference is not None
    assert reference.step == 7
    state = store.load(reference, rank=0)
    assert torch.equal(state["weight"], torch.full((3,), 2.5))
    assert state["epoch"] == 7


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointStore(Folder(tmp_path / "absent")).latest() is None


def test_a_folder_without_a_manifest_is_invisible_and_removed_by_the_next_save(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    save(store, 5)
    with pytest.raises(ConnectionError):
        store.save(6, rank=0, num_writers=2, state={"epoch": 6}, barrier=_peer_dies)
    assert (tmp_path / "step-00000006").is_dir()
    latest = store.latest()
    assert latest is not None
    assert latest.step == 5
    save(store, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000008"]


def _peer_dies() -> None:
    raise ConnectionError("peer closed the connection")


def test_a_truncated_file_makes_the_checkpoint_fall_back_to_the_one_before(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    save(store, 1)
    save(store, 2)
    file = tmp_path / "step-00000002" / "rank-00000.pt"
    file.write_bytes(file.read_bytes()[:-1])
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_changed_bytes_of_the_same_length_are_refused(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    reference = save(store, 3)
    file = tmp_path / "step-00000003" / "rank-00000.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointInvalidError, match="digest"):
        store.load(reference, rank=0)


def test_all_ranks_are_in_the_manifest_and_no_other(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    store.save(4, rank=1, num_writers=2, state={"rank": 1}, barrier=no_barrier)
    store.save(4, rank=0, num_writers=2, state={"rank": 0}, barrier=no_barrier)
    reference = store.latest()
    assert reference is not None
    assert [store.load(reference, rank=rank)["rank"] for rank in (0, 1)] == [0, 1]
    with pytest.raises(CheckpointInvalidError, match="2 ranks"):
        store.load(reference, rank=2)
    manifest = json.loads((tmp_path / "step-00000004" / "manifest.json").read_text())
    assert set(manifest["files"]) == {"rank-00000.pt", "rank-00001.pt"}


def test_ranks_beyond_the_writers_write_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    store.save(4, rank=0, num_writers=1, state={"rank": 0}, barrier=no_barrier)
    store.save(4, rank=1, num_writers=1, state={"rank": 1}, barrier=no_barrier)
    assert {path.name for path in (tmp_path / "step-00000004").iterdir()} == {"rank-00000.pt", "manifest.json"}


def test_a_checkpoint_that_this_rank_cannot_see_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    save(store, 3)
    assert store.at(3).step == 3
    with pytest.raises(CheckpointInvalidError, match="step-00000004 is no committed checkpoint"):
        store.at(4)


def test_steps_count_as_numbers_however_many_digits_they_have(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(store, step)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 100_000_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-100000000", "step-99999999"]


def test_what_was_saved_from_a_gpu_loads_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.save

    def save_as_from_a_gpu(state: object, file: object) -> None:
        """The bytes that torch writes on a GPU: they differ in the name of the place only."""
        plain = tmp_path / "plain.pt"
        real(state, plain)
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(file, "w") as target:  # type: ignore[call-overload]
            for name in source.namelist():
                target.writestr(name, source.read(name).replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:7"))

    monkeypatch.setattr(torch, "save", save_as_from_a_gpu)
    store = CheckpointStore(Folder(tmp_path / "job"))
    state = store.load(save(store, 1, 2.0), rank=0)
    assert state["weight"].device.type == "cpu"
    assert torch.equal(state["weight"], torch.full((3,), 2.0))


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(Folder(tmp_path))
    for step in range(1, 6):
        save(store, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_checkpoints_live_behind_a_uri_as_well() -> None:
    folder = Folder("memory://checkpoints-behind-a-uri")
    store = CheckpointStore(folder)
    save(store, 9, 4.0)
    reference = store.latest()
    assert reference is not None
    assert reference.folder.uri == "memory:///checkpoints-behind-a-uri/step-00000009"
    assert torch.equal(store.load(reference, rank=0)["weight"], torch.full((3,), 4.0))
    folder.remove()
    assert store.latest() is None
