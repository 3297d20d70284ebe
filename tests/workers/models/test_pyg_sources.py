"""Building models leaves no file behind; asked of a fresh process, since PyG writes once per process."""

import os
import subprocess
import sys
from pathlib import Path

BUILD = """
import sys, torch
from workers.models.registry import build_model
from workers.spec import SampledGNNSpec
for name in ("graphsage", "gcn"):
    model = build_model(SampledGNNSpec(name=name), num_features=3, num_classes=2)
    assert model(torch.ones(2, 3), torch.tensor([[0], [1]])).shape == (2, 2)
assert sum(name.endswith("_propagate") for name in sys.modules) >= 2
"""


def test_a_process_that_builds_sampled_models_leaves_no_file_of_pyg(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run([sys.executable, "-W", "ignore", "-c", BUILD], env=environment, timeout=120, check=True)
    assert not [path for path in tmp_path.rglob("*") if "torch_geometric" in path.name]
