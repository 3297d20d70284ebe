"""Errors travel between processes whole, and their codes are unique and documented."""

import importlib
import pickle
import pkgutil
from pathlib import Path

import pytest

from planner.errors import GraphmillError

ROOT = Path(__file__).resolve().parents[2]


def all_errors() -> list[type[GraphmillError]]:
    for room in ("planner", "workers", "service", "api"):
        for module in pkgutil.walk_packages([str(ROOT / room)], prefix=f"{room}."):
            if "migrations" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found, todo = [], [GraphmillError]
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return sorted(set(found), key=lambda kind: kind.__qualname__)


ERRORS = all_errors()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[GraphmillError]) -> None:
    error = kind("asked 8, found 2, ask for at most 2", asked=8, found=2)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.details == {"asked": 8, "found": 2}
    assert isinstance(copy, ValueError)


def test_every_code_is_used_once() -> None:
    codes = [kind.code for kind in ERRORS]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_code_is_explained_in_the_reference(kind: type[GraphmillError]) -> None:
    assert f"`{kind.code}`" in (ROOT / "docs" / "errors.md").read_text()
