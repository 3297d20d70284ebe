"""A job whose ranks are on two machines, which are two network namespaces of this one."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.netns import Namespace, namespaces, needs_namespaces
from tests.kit.unwinding import run_unwinding

pytestmark = [pytest.mark.ray, pytest.mark.netns]


@contextmanager
def job_on_two_nodes(home: Path, job: str) -> Iterator[tuple[Namespace, Namespace, dict[str, Any]]]:
    """The head, the second node, and what the job's script saw."""
    needs_namespaces()
    with namespaces(2, rate="1gbit") as (head, second):
        script = [sys.executable, "-m", "tests.on_ray.two_nodes", str(home), second.name, job]
        done = run_unwinding(head.command(*script), timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        yield head, second, json.loads(done.stdout.splitlines()[-1])


def test_ranks_on_two_nodes_train_one_model(tmp_path: Path) -> None:
    with job_on_two_nodes(tmp_path, "ranks") as (head, second, seen):
        assert seen["nodes"] == [head.address, second.address]
        assert set(seen["result"]["peak_memory_bytes"]) == {"0", "1"}


def test_actors_sample_on_the_node_that_has_no_ranks(tmp_path: Path) -> None:
    with job_on_two_nodes(tmp_path, "actors") as (head, second, seen):
        (of_ranks,), (of_actors,) = set(seen["nodes"]), set(seen["samplers"])
        assert {of_ranks, of_actors} == {head.address, second.address}
        assert (len(seen["nodes"]), len(seen["samplers"])) == (2, 2)
