"""Checkpoints are complete or invisible."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.kit.gloo_pool import GlooPool, RanksFailedError
from workers.comm.axis import Axis, open_axis
from workers.errors import CheckpointInvalidError
from workers.training.checkpoint import CheckpointRef, CheckpointStore
from workers.training.folder import Folder

CPU = torch.device("cpu")


def store_at(folder: Folder | Path) -> CheckpointStore:
    return CheckpointStore(folder if isinstance(folder, Folder) else Folder(folder), axis=Axis(), device=CPU)


def save(store: CheckpointStore, step: int, value: float = 1.0) -> CheckpointRef:
    return store.save(step, tensors={"weight": torch.full((3,), value)}, values={"epoch": step})


def load(store: CheckpointStore, reference: CheckpointRef) -> torch.Tensor:
    weight = torch.zeros(3)
    store.load(reference, tensors={"weight": weight})
    return weight


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    save(store, 7, 2.5)
    reference = store.latest()
    assert reference is not None
    assert (reference.step, reference.values) == (7, {"epoch": 7})
    assert torch.equal(load(store, reference), torch.full((3,), 2.5))


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert store_at(tmp_path / "absent").latest() is None


def test_a_folder_without_a_manifest_is_invisible_and_removed_by_the_next_save(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    save(store, 5)
    save(store, 6)
    (tmp_path / "step-00000006" / "manifest.json").unlink()
    latest = store.latest()
    assert latest is not None
    assert latest.step == 5
    save(store, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000008"]


def test_a_step_is_saved_anew_over_what_a_dead_attempt_left(tmp_path: Path) -> None:
    leftover = tmp_path / "step-00000004" / "__7_0.distcp"
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    store = store_at(tmp_path)
    assert torch.equal(load(store, save(store, 4, 3.0)), torch.full((3,), 3.0))
    assert not leftover.exists()


def test_a_checkpoint_that_is_removed_half_way_has_lost_its_manifest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_at(tmp_path)
    save(store, 1)
    save(store, 2)

    plain = Folder.remove

    def die(folder: Folder) -> None:
        if folder.uri.endswith("step-00000001"):
            raise ConnectionError("killed in the middle of it")
        plain(folder)

    monkeypatch.setattr(Folder, "remove", die)
    with pytest.raises(ConnectionError):
        save(store, 3)
    left = [path.name for path in (tmp_path / "step-00000001").iterdir()]
    assert left
    assert "manifest.json" not in left


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_truncated_file_makes_the_checkpoint_fall_back_to_the_one_before(tmp_path: Path, name: str) -> None:
    store = store_at(tmp_path)
    save(store, 1)
    save(store, 2)
    file = tmp_path / "step-00000002" / name
    file.write_bytes(file.read_bytes()[:-1])
    latest = store.latest()
    assert latest is not None
    assert latest.step == 1


def test_changed_bytes_of_the_same_length_are_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    reference = save(store, 3)
    file = tmp_path / "step-00000003" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointInvalidError, match=r"__0_0\.distcp do not match the digest"):
        load(store, reference)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("bias", (3,), "has bias of shape None"), ("weight", (4,), r"has weight of shape \(3,\).*wants \(4,\)")],
)
def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, name: str, shape: tuple[int, ...], message: str
) -> None:
    store = store_at(tmp_path)
    with pytest.raises(CheckpointInvalidError, match=message):
        store.load(save(store, 1), tensors={name: torch.zeros(shape)})


@pytest.fixture(scope="module")
def pool() -> Iterator[GlooPool]:
    with GlooPool(3) as pool:
        yield pool


def save_and_load(rank: int, world_size: int, folder: Path, dies: int | None) -> dict[str, list[float]]:
    """Every rank has a tensor of its own and one that all hold alike; rank r then loads that of rank r + 1 as well."""
    axis = open_axis((tuple(range(world_size)),), rank=rank)
    store = CheckpointStore(Folder(folder), axis=axis, device=CPU)
    tensors = {f"own.{rank}": torch.full((2,), float(rank)), "alike": torch.ones(2)}
    if rank == dies:
        raise ConnectionError("planted")
    reference = store.save(4, tensors=tensors, values={"rank": rank})
    found = {name: torch.zeros(2) for name in ("alike", f"own.{rank}", f"own.{(rank + 1) % world_size}")}
    store.load(reference, tensors=found)
    axis.close()
    return {name: tensor.tolist() for name, tensor in found.items()}


def test_ranks_save_what_they_hold_and_load_what_they_need(pool: GlooPool, tmp_path: Path) -> None:
    for rank, found in enumerate(pool.run(save_and_load, tmp_path, None)):
        following = (rank + 1) % 3
        assert found == {"alike": [1.0] * 2, f"own.{rank}": [rank] * 2, f"own.{following}": [following] * 2}
    manifest = json.loads((tmp_path / "step-00000004" / "manifest.json").read_text())
    assert set(manifest["files"]) == {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"}
    assert manifest["values"] == {"rank": 0}


def test_a_rank_that_dies_before_it_has_written_leaves_no_checkpoint(pool: GlooPool, tmp_path: Path) -> None:
    with pytest.raises(RanksFailedError, match="planted"):
        pool.run(save_and_load, tmp_path, 2)
    assert store_at(tmp_path).latest() is None


def test_a_checkpoint_that_this_rank_cannot_see_is_refused(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    save(store, 3)
    assert store.at(3).step == 3
    with pytest.raises(CheckpointInvalidError, match="step-00000004 is no committed checkpoint"):
        store.at(4)


def test_steps_count_as_numbers_however_many_digits_they_have(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for step in (99_999_998, 99_999_999, 100_000_000):
        save(store, step)
    latest = store.latest()
    assert latest is not None
    assert latest.step == 100_000_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-100000000", "step-99999999"]


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    for step in range(1, 6):
        save(store, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_checkpoints_live_behind_a_uri_as_well() -> None:
    folder = Folder("memory://checkpoints-behind-a-uri")
    store = store_at(folder)
    save(store, 9, 4.0)
    reference = store.latest()
    assert reference is not None
    assert reference.folder.uri == "memory:///checkpoints-behind-a-uri/step-00000009"
    assert torch.equal(load(store, reference), torch.full((3,), 4.0))
    folder.remove()
    assert store.latest() is None
