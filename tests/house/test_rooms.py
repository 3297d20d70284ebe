"""The rooms keep their walls: what the import linter cannot see."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("api", "service", "workers", "planner")
FILES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_file_is_short_enough_to_live_in(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 500


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_shells_know_ray(path: Path) -> None:
    knows_ray = any(module.split(".")[0] == "ray" for module in imported_modules(path))
    if not knows_ray or path.relative_to(ROOT).parts[0] == "service":
        return
    assert path.name == "actor.py" or path.name.startswith("ray_"), "Ray belongs into actor.py or ray_*.py"


PLAIN = [path for path in FILES if path.relative_to(ROOT).parts[:2] in {("workers", p) for p in ("models", "ops")}]


@pytest.mark.parametrize("path", PLAIN, ids=name)
def test_models_and_ops_do_not_know_that_they_are_distributed(path: Path) -> None:
    forbidden = {
        m for m in imported_modules(path) if m.startswith(("torch.distributed", "workers.comm", "workers.mega"))
    }
    assert not forbidden
    assert "torch.distributed" not in path.read_text()
    assert "dist." not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=name)
def test_only_settings_reads_the_environment(path: Path) -> None:
    if path.relative_to(ROOT) in ALLOWED_ENVIRONMENT:
        return
    text = path.read_text()
    assert "os.environ" not in text
    assert "os.getenv" not in text
    assert "getenv(" not in text


# service/settings.py is the reader. The others hand variables to processes that they start (embedded, demo), tell a
# collective library its interface (ray_backend), or take the address that Ray gives its own drivers (driver_main).
ALLOWED_ENVIRONMENT = {
    Path("service/settings.py"),
    Path("service/embedded.py"),
    Path("service/driver_main.py"),
    Path("workers/ray_backend.py"),
    Path("api/demo.py"),
}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_every_file_says_what_it_is(path: Path) -> None:
    if path.name == "__init__.py":
        assert path.read_text().strip() == "" or ast.get_docstring(ast.parse(path.read_text()))
        return
    assert ast.get_docstring(ast.parse(path.read_text())), "the module docstring is the map"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_is_left_open(path: Path) -> None:
    text = path.read_text()
    for word in ("TODO", "FIXME", "XXX", "HACK", "NotImplementedError"):
        assert word not in text


def test_no_other_code_lies_at_the_root() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert {f for f in folders if any((ROOT / f).rglob("*.py"))} <= {*ROOMS, "deploy", "tests"}
    assert [path.name for path in ROOT.glob("*.py")] == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("planner.planner", ("torch", "ray", "fastapi", "sqlalchemy")),
        ("workers.spec", ("torch", "ray", "torch_geometric")),
        ("service.spec", ("torch", "ray", "sqlalchemy")),
        ("api.app", ("torch", "ray")),
        ("api.client", ("torch", "ray", "fastapi", "sqlalchemy")),
        ("api.cli", ("torch", "ray", "fastapi", "sqlalchemy")),
        ("workers.runtime", ("ray",)),
    ],
)
def test_importing_a_door_does_not_import_the_heavy_things_behind_it(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
