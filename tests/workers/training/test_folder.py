"""Writes are whole or absent."""

import os
from pathlib import Path

import pytest

from workers.training.folder import Folder


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    folder = Folder(tmp_path) / "a" / "b"
    assert folder.names() == []
    assert not (tmp_path / "a").exists()


def test_a_failed_write_leaves_the_old_bytes_and_no_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    folder.write("model", b"old")

    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        folder.write("model", b"new")
    assert folder.read("model") == b"old"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_the_umask_decides_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        Folder(tmp_path).write("model", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == mode


def test_an_absent_file_has_no_size(tmp_path: Path) -> None:
    assert Folder(tmp_path).size("nothing") is None


def test_a_plain_path_stays_a_plain_path(tmp_path: Path) -> None:
    assert (Folder(tmp_path) / "export").uri == str(tmp_path / "export")
