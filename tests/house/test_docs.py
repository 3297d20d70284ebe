"""The documents are true: fields, settings, routes, states and commands are named, and what is named exists."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.main import get_command

from api.app import create_app
from api.cli import app as command_line
from planner.caching import CacheRule
from planner.plan import MegaGraphPlan, MQGNNPlan, Prediction, QueueBudget, Stage
from planner.sync import SyncRule
from service.settings import Settings
from service.spec import JobSpec, JobState, LimitsSpec, ResourcesSpec
from service.states import LEGAL_MOVES
from service.validation import parse_spec
from workers.model_specs.needs import Needs
from workers.spec import NAMED_DATASETS, SPEC_OF_MODEL, DatasetSpec, LinkSpec, ScheduleSpec, TrainingSpec

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def page(name: str) -> str:
    return (ROOT / name).read_text()


def fields(*models: type[BaseModel]) -> list[str]:
    return sorted({field for model in models for field in model.model_fields})


@pytest.mark.parametrize(
    "field",
    fields(
        JobSpec,
        ResourcesSpec,
        LimitsSpec,
        DatasetSpec,
        LinkSpec,
        *SPEC_OF_MODEL.values(),
        Needs,
        TrainingSpec,
        ScheduleSpec,
        SyncRule,
        CacheRule,
    ),
)
def test_every_field_of_a_spec_is_documented(field: str) -> None:
    assert f"`{field}`" in page("docs/spec.md")


@pytest.mark.parametrize("field", fields(MegaGraphPlan, MQGNNPlan, Stage, QueueBudget, Prediction))
def test_every_field_of_a_plan_is_documented(field: str) -> None:
    assert f"`{field}`" in page("docs/plan.md")


@pytest.mark.parametrize("field", fields(Settings))
def test_every_setting_is_documented(field: str) -> None:
    assert f"`GRAPHMILL_{field.upper()}`" in page("docs/settings.md")


@pytest.mark.parametrize("name", sorted(NAMED_DATASETS))
def test_every_named_data_set_is_documented(name: str) -> None:
    assert f"`{name}`" in page("docs/spec.md")


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_and_its_moves_are_documented(state: JobState) -> None:
    row = next(line for line in page("docs/api.md").splitlines() if line.startswith(f"| `{state}` |"))
    assert set(re.findall(r"[A-Z]{4,}", row.split("|")[2])) == {str(target) for target in LEGAL_MOVES[state]}


def routes() -> list[str]:
    schema = create_app().openapi()
    return [f"{method.upper()} {path}" for path, methods in schema["paths"].items() for method in methods]


@pytest.mark.parametrize("route", routes())
def test_every_route_is_documented(route: str) -> None:
    assert f"`{route}`" in page("docs/api.md")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_between_pages_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def commands(path: Path) -> Iterator[list[str]]:
    for block in re.findall(r"```console\n(.*?)```", path.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                yield shlex.split(line[2:], comments=True)


COMMANDS = [(path.name, words) for path in PAGES for words in commands(path)]


@pytest.mark.parametrize(("where", "words"), COMMANDS, ids=lambda value: " ".join(value) if list is type(value) else "")
def test_every_command_that_a_page_shows_exists(where: str, words: list[str]) -> None:
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", page("Makefile"), flags=re.MULTILINE), where
    elif words[0] == "graphmill":
        group = get_command(command_line)
        for word in words[1:]:
            if hasattr(group, "commands"):
                assert word in group.commands, f"{where}: no command {word}"
                group = group.commands[word]
            elif word.startswith("-"):
                known = {option for parameter in group.params for option in parameter.opts}
                assert word in known, f"{where}: no option {word}"


def yaml_blocks() -> list[dict[str, Any]]:
    blocks = [b for path in PAGES for b in re.findall(r"```yaml\n(.*?)```", path.read_text(), flags=re.DOTALL)]
    return [loaded for block in blocks if "kind" in (loaded := yaml.safe_load(block))]


@pytest.mark.parametrize("spec", yaml_blocks(), ids=lambda spec: str(spec["name"]))
def test_every_spec_that_a_page_shows_is_valid(spec: dict[str, Any]) -> None:
    dataset = spec["dataset"]
    if "path" in dataset:  # the command line takes it relative to the spec
        dataset = {**dataset, "path": str(ROOT / dataset["path"])}
    assert parse_spec({**spec, "dataset": dataset}).name == spec["name"]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_speak_of_the_project_alone(path: Path) -> None:
    text = path.read_text()
    for trace in ("/" + "work/", "/" + "root/", "py" + "pi.org"):
        assert trace not in text
