"""Fixtures for every room: where the real data sets are."""

import os
from pathlib import Path

import pytest

# Triton decides where its kernels run when they are defined, so before any test imports them: here they are interpreted
# on the CPU, unless there is a GPU.
if not Path("/proc/driver/nvidia").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

NEIGHBOUR = Path(__file__).resolve().parents[2] / "shared" / "data"


def find_data_root() -> Path:
    """Where the read-only folder of real data sets should be: GRAPHMILL_DATA_ROOT, else ../shared/data."""
    return Path(os.environ.get("GRAPHMILL_DATA_ROOT") or NEIGHBOUR)


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of ``find_data_root``; what needs it is skipped where there is none."""
    root = find_data_root()
    if not root.is_dir():
        pytest.skip(f"real data sets: not found at {root}; set GRAPHMILL_DATA_ROOT to run this test")
    return root
