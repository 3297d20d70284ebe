"""A job whose ranks are on two machines, which are two network namespaces of this one."""

import json
import sys
from pathlib import Path

import pytest

from tests.kit.netns import namespaces, needs_namespaces
from tests.kit.unwinding import run_unwinding

pytestmark = [pytest.mark.ray, pytest.mark.netns]


def test_ranks_on_two_nodes_train_one_model(tmp_path: Path) -> None:
    needs_namespaces()
    with namespaces(2, rate="1gbit") as (head, second):
        script = [sys.executable, "-m", "tests.on_ray.two_nodes", str(tmp_path), second.name]
        done = run_unwinding(head.command(*script), timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        seen = json.loads(done.stdout.splitlines()[-1])
        assert seen["nodes"] == [head.address, second.address]
        assert set(seen["result"]["peak_memory_bytes"]) == {"0", "1"}
