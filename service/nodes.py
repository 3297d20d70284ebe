"""What a node says of itself beyond Ray's resources, and how both together become a ``NodeSpec``.

Ray advertises logical CPUs, which in the embedded cluster exceed the cores on purpose; the planner prices threads by
cores and tells devices apart by name. So nodes that we start carry labels; any other cluster may set the same ones
(``ray start --labels``). A node without them is believed: as many cores as CPUs, an unnamed CPU.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from planner.cluster import NodeSpec

CORES_LABEL = "graphmill.io/physical-cores"
DEVICE_LABEL = "graphmill.io/device"
GPU_MEMORY_LABEL = "graphmill.io/gpu-memory-mib"
_RAY_ACCELERATOR_LABEL = "ray.io/accelerator-type"
_LONGEST_LABEL = 63
_TOOL_TIMEOUT_S = 10.0


def labels_of_this_node() -> dict[str, str]:
    """Physical cores this process may use, the processor's name, and the memory of one GPU where there is any."""
    labels = {CORES_LABEL: str(_usable_cores()), DEVICE_LABEL: _label(_processor_name())}
    gpu_memory = _gpu_memory_mib()
    return labels if gpu_memory is None else {**labels, GPU_MEMORY_LABEL: str(gpu_memory)}


def node_spec(
    *, node_id: str, address: str, resources: Mapping[str, float], labels: Mapping[str, str] | None
) -> NodeSpec:
    """One node in the planner's words."""
    said = labels or {}
    num_cpus = float(resources.get("CPU", 0.0))
    return NodeSpec(
        node_id=node_id,
        address=address,
        num_cpus=num_cpus,
        num_gpus=float(resources.get("GPU", 0.0)),
        physical_cores=int(said.get(CORES_LABEL) or max(1.0, num_cpus)),
        memory_bytes=int(resources.get("memory", 0.0)),
        device_name=said.get(_RAY_ACCELERATOR_LABEL) or said.get(DEVICE_LABEL) or "cpu",
        cpu_name=said.get(DEVICE_LABEL) or "cpu",
        gpu_memory_bytes=int(said.get(GPU_MEMORY_LABEL, "0")) * 2**20,
    )


def spec_of_ray_node(node: Mapping[str, Any]) -> NodeSpec:
    """One entry of ``ray.nodes()``."""
    return node_spec(
        node_id=node["NodeID"],
        address=node["NodeManagerAddress"],
        resources=node.get("Resources") or {},
        labels=node.get("Labels"),
    )


def _usable_cores() -> int:
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def _label(text: str) -> str:
    """The text in the letters that Ray allows in the value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LONGEST_LABEL].strip("-._") or "cpu"


def _gpu_memory_mib() -> int | None:
    """Memory of the smallest GPU as the driver's own tool tells it; None without GPU or an answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a driver in trouble: the cluster is to start all the same
        return None
    sizes = [int(line) for line in asked.stdout.split() if line.isdigit()]
    return min(sizes) if asked.returncode == 0 and sizes else None
