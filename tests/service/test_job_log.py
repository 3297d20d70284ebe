"""Logs in pieces, from a file that grows and from the parts that a driver copies into an object store."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import job_log
from service.job_log import LogCopier, LogOffsetError, log_size, read_log, tail_offset
from tests.kit.live_api import wait_until
from workers.training.folder import Folder


def written(folder: Path, content: bytes) -> Folder:
    file = folder / "driver.log"
    file.write_bytes(content)
    return Folder(folder)


def in_pieces(log: Folder, limit: int) -> list[str]:
    pieces, offset = [], 0
    while True:
        piece = read_log(log, offset=offset, limit=limit)
        if piece.next_offset == offset:
            return pieces
        pieces.append(piece.text)
        offset = piece.next_offset


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    piece = read_log(Folder(tmp_path), offset=0, limit=100)
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
    log = written(tmp_path_factory.mktemp("log"), text.encode())
    assert "".join(in_pieces(log, limit)) == text


def test_the_rest_of_a_character_is_waited_for(tmp_path: Path) -> None:
    euro = "€".encode()
    log = written(tmp_path, b"a" + euro[:2])
    piece = read_log(log, offset=0, limit=100)
    assert (piece.text, piece.next_offset) == ("a", 1)
    written(tmp_path, b"a" + euro)
    assert read_log(log, offset=1, limit=100).text == "€"


def test_bytes_that_are_no_text_do_not_stop_the_log(tmp_path: Path) -> None:
    assert "".join(in_pieces(written(tmp_path, b"ok\n\xff\xfe\nstill ok\n"), limit=8)).endswith("still ok\n")


def test_asking_beyond_the_end_is_an_error_and_at_the_end_is_not(tmp_path: Path) -> None:
    log = written(tmp_path, b"12345")
    assert read_log(log, offset=5, limit=10).text == ""
    with pytest.raises(LogOffsetError, match="5 bytes"):
        read_log(log, offset=6, limit=10)


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
    log = written(tmp_path, content)
    assert content[tail_offset(log, lines=lines) :] == expected


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setattr(job_log, "PART_BYTES", 8)
    monkeypatch.setattr(job_log, "COPY_EVERY_S", 0.01)
    yield Folder("memory://log-parts/logs")
    fsspec.filesystem("memory").rm("/log-parts", recursive=True)


def copied(file: Path, bucket: Folder, *, more: bytes = b"") -> None:
    """One driver: it starts to copy, prints ``more``, and ends."""
    copier = LogCopier(file, bucket)
    copier.start()
    with file.open("ab") as log:
        log.write(more)
    copier.stop()


def test_parts_read_like_one_log(tmp_path: Path, bucket: Folder) -> None:
    file = tmp_path / "log"
    text = b"one\ntwo\nthree\nfour\nfive\n"
    file.touch()
    copied(file, bucket, more=text)
    assert bucket.names() == [f"driver-{begin:016d}.log" for begin in (0, 8, 16)]
    assert log_size(bucket) == len(text)
    assert "".join(in_pieces(bucket, limit=10)).encode() == text
    assert read_log(bucket, offset=tail_offset(bucket, lines=2), limit=100).text == "four\nfive\n"
    with pytest.raises(LogOffsetError):
        read_log(bucket, offset=len(text) + 1, limit=10)


def test_what_is_printed_is_read_while_the_driver_runs(tmp_path: Path, bucket: Folder) -> None:
    file = tmp_path / "log"
    file.touch()
    copier = LogCopier(file, bucket)
    copier.start()
    try:
        for said in (b"one\n", b"two\n", b"three\n"):
            with file.open("ab") as log:
                log.write(said)
            wait_until(lambda: log_size(bucket) == file.stat().st_size)
    finally:
        copier.stop()
    assert "".join(in_pieces(bucket, limit=100)) == "one\ntwo\nthree\n"


def test_a_second_driver_of_the_same_job_goes_on_behind_the_first(tmp_path: Path, bucket: Folder) -> None:
    for number, text in enumerate((b"first driver\n", b"second driver\n")):
        file = tmp_path / str(number)
        file.write_bytes(text)
        copied(file, bucket)
    assert "".join(in_pieces(bucket, limit=100)) == "first driver\nsecond driver\n"


def test_a_storage_that_fails_once_gets_the_log_all_the_same(
    tmp_path: Path, bucket: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, plain = [OSError("the bucket is away")], Folder.write

    def write(folder: Folder, name: str, data: bytes) -> None:
        if failures:
            raise failures.pop()
        plain(folder, name, data)

    monkeypatch.setattr(Folder, "write", write)
    file = tmp_path / "log"
    file.write_bytes(b"all of it\n")
    copier = LogCopier(file, bucket)
    copier.start()
    wait_until(lambda: log_size(bucket) == file.stat().st_size)
    copier.stop()
    assert (failures, read_log(bucket, offset=0, limit=100).text) == ([], "all of it\n")
