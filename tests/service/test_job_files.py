"""Logs in pieces and artifacts by name."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.job_files import (
    ArtifactNotFoundError,
    LogOffsetError,
    find_artifact,
    list_artifacts,
    read_log,
    tail_offset,
)


def written(folder: Path, content: bytes) -> Path:
    file = folder / "driver.log"
    file.write_bytes(content)
    return file


def in_pieces(file: Path, limit: int) -> list[str]:
    pieces, offset = [], 0
    while True:
        piece = read_log(file, offset=offset, limit=limit)
        if piece.next_offset == offset:
            return pieces
        pieces.append(piece.text)
        offset = piece.next_offset


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    piece = read_log(tmp_path / "driver.log", offset=0, limit=100)
    assert (piece.text, piece.next_offset, piece.at_end) == ("", 0, True)


def test_pieces_end_after_a_line(tmp_path: Path) -> None:
    assert in_pieces(written(tmp_path, b"one\ntwo\nthree\n"), limit=6) == ["one\n", "two\n", "three\n"]


def test_a_line_longer_than_a_piece_is_cut_and_the_rest_goes_on(tmp_path: Path) -> None:
    pieces = in_pieces(written(tmp_path, b"x" * 25 + b"\nshort\n"), limit=10)
    assert pieces == ["x" * 10, "x" * 10, "xxxxx\n", "short\n"]


@given(text=st.text(st.sampled_from("aé€😀\n"), max_size=60), limit=st.integers(4, 20))
def test_pieces_add_up_to_the_log_and_no_character_is_broken(
    tmp_path_factory: pytest.TempPathFactory, text: str, limit: int
) -> None:
    file = written(tmp_path_factory.mktemp("log"), text.encode())
    assert "".join(in_pieces(file, limit)) == text


def test_the_rest_of_a_character_is_waited_for(tmp_path: Path) -> None:
    euro = "€".encode()
    file = written(tmp_path, b"a" + euro[:2])
    piece = read_log(file, offset=0, limit=100)
    assert (piece.text, piece.next_offset) == ("a", 1)
    file.write_bytes(b"a" + euro)
    assert read_log(file, offset=1, limit=100).text == "€"


def test_bytes_that_are_no_text_do_not_stop_the_log(tmp_path: Path) -> None:
    assert "".join(in_pieces(written(tmp_path, b"ok\n\xff\xfe\nstill ok\n"), limit=8)).endswith("still ok\n")


def test_asking_beyond_the_end_is_an_error_and_at_the_end_is_not(tmp_path: Path) -> None:
    file = written(tmp_path, b"12345")
    assert read_log(file, offset=5, limit=10).text == ""
    with pytest.raises(LogOffsetError, match="5 bytes"):
        read_log(file, offset=6, limit=10)


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 9, b"a\nb\n"),
        (b"a\n\n\n", 2, b"\n\n"),
    ],
)
def test_a_tail_begins_at_a_line(tmp_path: Path, content: bytes, lines: int, expected: bytes) -> None:
    file = written(tmp_path, content)
    assert content[tail_offset(file, lines=lines) :] == expected


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    job = tmp_path / "jobs" / "job-1"
    for path in (
        "export/model.safetensors",
        "export/config.json",
        "checkpoints/step-00000010/manifest.json",
        "checkpoints/step-00000020/rank-00000.pt",  # the job was cut off before the manifest
        "checkpoints/step-00000010/.manifest.json.k3j2",
        "checkpoints/other/manifest.json",
        "logs/driver.log",
        "secret.txt",
    ):
        (job / path).parent.mkdir(parents=True, exist_ok=True)
        (job / path).write_text(path)
    (tmp_path / "outside.txt").write_text("not yours")
    os.symlink(tmp_path / "outside.txt", job / "export" / "link.txt")
    os.symlink(tmp_path, job / "export" / "linked_folder")
    return job


SHOWN = ["checkpoints/step-00000010/manifest.json", "export/config.json", "export/model.safetensors"]


def test_only_whole_artifacts_are_listed(job_dir: Path) -> None:
    assert [artifact.path for artifact in list_artifacts(job_dir)] == SHOWN


@pytest.mark.parametrize("path", SHOWN)
def test_what_is_listed_is_found(job_dir: Path, path: str) -> None:
    artifact = find_artifact(job_dir, path)
    assert artifact.file.read_text() == path
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
def test_what_is_not_listed_is_not_found(job_dir: Path, path: str) -> None:
    with pytest.raises(ArtifactNotFoundError):
        find_artifact(job_dir, path)


def test_an_export_is_none_before_its_configuration_is_there(job_dir: Path) -> None:
    (job_dir / "export" / "config.json").unlink()
    assert [artifact.path for artifact in list_artifacts(job_dir)] == SHOWN[:1]


def test_a_checkpoint_that_is_dropped_while_it_is_listed_is_left_out(
    job_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = job_dir / "checkpoints" / "step-00000011"
    kept.mkdir()
    (kept / "manifest.json").touch()
    plain = os.scandir

    def scan_late(folder: Path | int) -> object:
        if str(folder).endswith("step-00000010"):
            shutil.rmtree(job_dir / "checkpoints" / "step-00000010")  # the training is quicker than we are
        return plain(folder)

    monkeypatch.setattr("service.job_files.os.scandir", scan_late)
    paths = [artifact.path for artifact in list_artifacts(job_dir)]
    assert paths == ["checkpoints/step-00000011/manifest.json", *SHOWN[1:]]


def test_a_job_without_a_folder_has_no_artifacts(tmp_path: Path) -> None:
    assert list_artifacts(tmp_path / "none") == []
