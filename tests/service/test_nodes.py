"""How a node describes itself."""

import os
from pathlib import Path

import pytest

from service import nodes
from service.nodes import CORES_LABEL, DEVICE_LABEL, GPU_MEMORY_LABEL, labels_of_this_node, node_spec, spec_of_ray_node

RESOURCES = {"CPU": 16.0, "GPU": 2.0, "memory": 8e9}


def test_this_node_knows_its_cores_and_its_processor_in_letters_that_ray_allows() -> None:
    labels = labels_of_this_node()
    assert 1 <= int(labels[CORES_LABEL]) <= (os.cpu_count() or 1)
    assert labels[DEVICE_LABEL]
    assert all(letter.isalnum() or letter in "-_." for letter in labels[DEVICE_LABEL])
    assert len(labels[DEVICE_LABEL]) <= 63


@pytest.mark.parametrize("script", ["sleep 60", "exit 9"])
def test_a_tool_that_hangs_or_fails_is_a_node_without_known_gpu_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nexec {script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nodes, "_TOOL_TIMEOUT_S", 0.2)
    assert GPU_MEMORY_LABEL not in labels_of_this_node()


def test_a_tool_that_cannot_be_started_is_a_node_without_known_gpu_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/nowhere/interpreter\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert GPU_MEMORY_LABEL not in labels_of_this_node()


def test_labels_tell_what_resources_do_not() -> None:
    labels = {CORES_LABEL: "4", DEVICE_LABEL: "EPYC", GPU_MEMORY_LABEL: "81920"}
    spec = node_spec(node_id="n", address="10.0.0.1", resources=RESOURCES, labels=labels)
    assert (spec.num_cpus, spec.num_gpus, spec.physical_cores) == (16.0, 2.0, 4)
    assert (spec.device_name, spec.gpu_memory_bytes) == ("EPYC", 81920 * 2**20)


def test_a_gpu_that_ray_found_names_the_device() -> None:
    labels = {"ray.io/accelerator-type": "H200", DEVICE_LABEL: "EPYC"}
    spec = node_spec(node_id="n", address="a", resources=RESOURCES, labels=labels)
    assert (spec.device_name, spec.cpu_name) == ("H200", "EPYC")


def test_a_node_without_labels_has_as_many_cores_as_cpus_and_an_unnamed_device() -> None:
    spec = spec_of_ray_node({"NodeID": "n", "NodeManagerAddress": "a", "Resources": RESOURCES, "Labels": None})
    assert (spec.physical_cores, spec.device_name, spec.gpu_memory_bytes) == (16, "cpu", 0)


def test_a_node_without_cpus_still_has_a_core() -> None:
    assert node_spec(node_id="n", address="a", resources={}, labels={}).physical_cores == 1
