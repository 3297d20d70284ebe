"""Artifacts by name, on a disk and behind a URI."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from service.job_files import ArtifactNotFoundError, committed_checkpoints, find_artifact, list_artifacts
from workers.training.folder import Folder


@pytest.fixture
def job(tmp_path: Path) -> Folder:
    home = tmp_path / "jobs" / "job-1"
    for path in (
        "export/model.safetensors",
        "export/config.json",
        "checkpoints/step-00000010/manifest.json",
        "checkpoints/step-00000020/rank-00000.pt",  # the job was cut off before the manifest
        "checkpoints/step-00000010/.manifest.json.k3j2",
        "checkpoints/other/manifest.json",
        "predictions/part-00000.parquet",
        "logs/driver.log",
        "secret.txt",
    ):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    (tmp_path / "outside.txt").write_text("not yours")
    os.symlink(tmp_path / "outside.txt", home / "export" / "link.txt")
    os.symlink(tmp_path, home / "export" / "linked_folder")
    return Folder(home)


SHOWN = ["checkpoints/step-00000010/manifest.json", "export/config.json", "export/model.safetensors"]


def test_only_whole_artifacts_are_listed(job: Folder) -> None:
    assert [artifact.path for artifact in list_artifacts(job)] == SHOWN


@pytest.mark.parametrize("path", SHOWN)
def test_what_is_listed_is_found(job: Folder, path: str) -> None:
    artifact = find_artifact(job, path)
    assert artifact.read(0, len(path)) == path.encode()
    assert artifact.size_bytes == len(path)


@pytest.mark.parametrize(
    "path",
    [
        "../../outside.txt",
        "export/../secret.txt",
        "export/../../../outside.txt",
        "/etc/passwd",
        "export/link.txt",
        "export/linked_folder/outside.txt",
        "secret.txt",
        "logs/driver.log",
        "checkpoints/step-00000020/rank-00000.pt",
        "checkpoints/step-00000010/.manifest.json.k3j2",
        "export",
        "",
        "export//config.json",
        "export/\0",
    ],
)
def test_what_is_not_listed_is_not_found(job: Folder, path: str) -> None:
    with pytest.raises(ArtifactNotFoundError):
        find_artifact(job, path)


def test_an_export_is_none_before_its_configuration_is_there(job: Folder) -> None:
    Path((job / "export").uri, "config.json").unlink()
    assert [artifact.path for artifact in list_artifacts(job)] == SHOWN[:1]


def test_predictions_are_none_before_their_manifest_is_there(job: Folder) -> None:
    (job / "predictions").write("manifest.json", b"{}")
    shown = [artifact.path for artifact in list_artifacts(job)]
    assert shown == sorted([*SHOWN, "predictions/manifest.json", "predictions/part-00000.parquet"])


def test_a_checkpoint_that_is_dropped_while_it_is_listed_is_left_out(
    job: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job / "checkpoints" / "step-00000011").write("manifest.json", b"")
    plain = Folder.files

    def list_late(folder: Folder) -> Any:
        if folder.uri.endswith("step-00000010"):
            shutil.rmtree(folder.uri)  # the training is quicker than we are
        return plain(folder)

    monkeypatch.setattr(Folder, "files", list_late)
    paths = [artifact.path for artifact in list_artifacts(job)]
    assert paths == ["checkpoints/step-00000011/manifest.json", *SHOWN[1:]]


def test_a_job_without_a_folder_has_no_artifacts(tmp_path: Path) -> None:
    assert list_artifacts(Folder(tmp_path / "none")) == []


@pytest.fixture
def bucket() -> Iterator[Folder]:
    folder = Folder("memory://artifacts/jobs/job-1")
    yield folder
    fsspec.filesystem("memory").rm("/artifacts", recursive=True)


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path: Path) -> None:
    job = Folder(tmp_path)
    for name in ("step-100000000", "step-99999999"):
        (job / "checkpoints" / name).write("manifest.json", b"{}")
    assert [folder.uri[-9:] for folder in committed_checkpoints(job)] == ["-99999999", "100000000"]


def test_behind_a_uri_the_same_things_are_artifacts(bucket: Folder) -> None:
    assert list_artifacts(bucket) == []
    (bucket / "checkpoints" / "step-00000010").write("manifest.json", b"{}")
    (bucket / "checkpoints" / "step-00000020").write("rank-00000.pt", b"half")
    (bucket / "export").write("model.safetensors", b"weights")
    (bucket / "export").write("config.json", b"{}")
    assert [artifact.path for artifact in list_artifacts(bucket)] == SHOWN
    assert [folder.uri for folder in committed_checkpoints(bucket)] == [f"{bucket.uri}/checkpoints/step-00000010"]
    found = find_artifact(bucket, "export/model.safetensors")
    assert (found.size_bytes, found.read(2, 5)) == (7, b"igh")
    with pytest.raises(ArtifactNotFoundError):
        find_artifact(bucket, "export/../checkpoints/step-00000020/rank-00000.pt")
