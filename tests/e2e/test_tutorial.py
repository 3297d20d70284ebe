"""The tutorial, done as it is written: every file, every command, in order."""

import re
import shlex
from pathlib import Path

import pytest

from tests.e2e.server import Home

pytestmark = pytest.mark.ray

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


def test_the_tutorial_works_as_it_is_written(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    desk = tmp_path / "desk"
    desk.mkdir()
    said = []
    with home.serving():  # the page's `graphmill serve`, on a port of its own
        for language, block in re.findall(r"```(python|yaml|console)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
            if language != "console":
                name = block.splitlines()[0].removeprefix("# ")
                (desk / name).write_text(block)
                continue
            for line in block.splitlines():
                words = shlex.split(line.removeprefix("$ "))
                if words[0] == "source" or words[:2] in (["graphmill", "serve"], ["graphmill", "stop"]):
                    continue
                done = home.run(*words, cwd=desk)
                assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
                said.append(done.stdout)
    text = "\n".join(said)
    assert text.count("FINISHED") >= 2
    accuracies = [float(found) for found in re.findall(r"test accuracy\s+([\d.]+)\s*%", text)]
    assert len(accuracies) >= 2
    assert min(accuracies) > 50.0, "four fields: guessing gives 25 %"
    assert re.search(r"\d+ parameters", text)
