"""Errors travel between processes whole, and their codes are unique and documented."""

import importlib
import pickle
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from api.app import create_app
from api.cli_errors import ExitCode
from api.errors import PROBLEMS
from planner.errors import GraphmillError

ROOT = Path(__file__).resolve().parents[2]


def all_errors() -> list[type[GraphmillError]]:
    for room in ("planner", "workers", "service", "api"):
        for module in pkgutil.walk_packages([str(ROOT / room)], prefix=f"{room}."):
            without_triton = module.name.startswith("workers.ops.triton_") and find_spec("triton") is None
            if "migrations" not in module.name and not module.name.endswith("__main__") and not without_triton:
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


REFERENCE = (ROOT / "docs" / "errors.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the reference."""
    part = REFERENCE.split(f"## {heading}")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:3] == "| `"]


def test_the_reference_has_exactly_the_problems_of_the_api_with_their_statuses() -> None:
    documented = {code.strip("`"): int(status) for code, status, *_ in rows("Of a request")}
    assert documented == {code: kind.status for code, kind in PROBLEMS.items()}


def test_every_problem_is_named_by_a_route_or_can_meet_any_request() -> None:
    named = set(re.findall(r"\(`(\w+)`\)", str(create_app().openapi())))
    assert set(PROBLEMS) == named | {"route_not_found", "method_not_allowed", "internal_error"}


def codes_in_source(pattern: str) -> set[str]:
    return {code for path in (ROOT / "service").rglob("*.py") for code in re.findall(pattern, path.read_text())}


def test_the_reference_has_exactly_the_reasons_to_wait() -> None:
    given = codes_in_source(r'(?:Waiting\(\s*code=|_wait\(\s*)"(\w+)"')
    assert {code.strip("`") for code, _ in rows("Of a waiting job")} == given


@pytest.mark.parametrize("code", sorted(codes_in_source(r'(?:Reason|_Failure)\(\s*code="(\w+)"') - {"ended"}))
def test_every_reason_of_a_job_is_explained(code: str) -> None:
    assert any(f"`{code}`" in cells[0] for cells in rows("Of a job"))


def test_the_help_of_the_command_line_names_every_exit_code() -> None:
    text = (ROOT / "api" / "cli.py").read_text()
    assert all(re.search(rf"\b{code:d} ", text) for code in ExitCode)
