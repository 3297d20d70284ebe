"""The library of compiled kernels: found, checked, told in one line; and never in the way where it is not right."""

import ctypes.util
import logging
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from workers.ops import attention_kernels, native
from workers.ops.attention_kernels import PLAIN, kernel_for

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _first_use() -> Iterator[None]:
    """Each test meets the library for the first time, and leaves nothing of what it met."""
    caches = (native.native_library, attention_kernels._native)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def other_library() -> Path:
    """A library that is there, but not ours."""
    name = ctypes.util.find_library("c")
    assert name
    return Path(name)


def test_a_library_that_runs_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    if not native.library_path().exists():
        pytest.skip("no native library is installed")
    with caplog.at_level(logging.INFO):
        for dtype in (torch.float32, torch.float64):
            assert kernel_for(torch.empty(0, dtype=dtype)) is not PLAIN
    assert [record.getMessage() for record in caplog.records] == [f"kernels: {native.kernel_form().replace(' ', ', ')}"]


@pytest.mark.parametrize("kind", ["missing", "no library", "stale"])
def test_a_library_that_does_not_fit_gives_the_plain_form_and_one_warning(
    kind: str, tmp_path: Path, other_library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = {"missing": tmp_path / "_native.so", "no library": tmp_path / "text.so", "stale": other_library}[kind]
    (tmp_path / "text.so").write_text("not a library")
    monkeypatch.setattr(native, "library_path", lambda: path)
    with caplog.at_level(logging.INFO):
        assert kernel_for(torch.empty(0)) is PLAIN
        assert kernel_for(torch.empty(0)) is PLAIN
        assert native.kernel_form() == "plain"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert path.name in caplog.text
    assert "install" in caplog.text


def test_a_library_of_another_interface_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.library_path().exists():
        pytest.skip("no native library is installed")
    found = native.ABI_NUMBER
    monkeypatch.setattr(native, "ABI_NUMBER", found + 1)
    with pytest.raises(ImportError, match=f"stale: it has interface {found}, these sources have {found + 1}"):
        native.open_library(native.library_path())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_number_types_take_the_plain_form(dtype: torch.dtype) -> None:
    assert kernel_for(torch.empty(0, dtype=dtype)) is PLAIN


def test_other_devices_take_the_plain_form() -> None:
    assert kernel_for(torch.empty(0, device="meta")) is PLAIN


def test_every_source_is_built_and_every_header_rebuilds() -> None:
    (extension,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    listed = {"*.cpp": extension["sources"], "*.h": extension["depends"]}
    for pattern, names in listed.items():
        found = {str(path.relative_to(ROOT)) for path in (ROOT / "workers/ops/csrc").rglob(pattern)}
        assert set(names) == found
