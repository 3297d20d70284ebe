"""The sections of ``tests.gpu.check`` as tests: skipped by name where there is no GPU."""

import json

import pytest
import torch

from tests.gpu import check
from tests.gpu.sections import SECTIONS


@pytest.mark.parametrize("name", SECTIONS)
def test_on_a_gpu(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"{name} needs a GPU: python -m tests.gpu.check")
    assert SECTIONS[name](), "a section tells what it saw"


def test_the_script_says_what_it_skips_and_what_it_saw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main(["attention_table"]) == 0
    assert "no GPU: attention_table" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "made up")
    monkeypatch.setattr(check, "version", lambda name: "0")

    def missing() -> dict[str, str]:
        raise ImportError("no pydantic")

    def wrong() -> dict[str, str]:
        raise AssertionError("off by one")

    monkeypatch.setattr(check, "SECTIONS", {"fine": lambda: {"seen": 1}, "lacking": missing, "broken": wrong})
    assert check.main([]) == 1
    seen = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: seen[name]["verdict"] for name in ("fine", "lacking", "broken")} == {
        "fine": "passed",
        "lacking": "skipped",
        "broken": "FAILED",
    }
