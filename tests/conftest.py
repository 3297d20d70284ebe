"""Fixtures for every room: where the real data sets are."""

import os
from pathlib import Path

import pytest

NEIGHBOUR = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The read-only folder of real data sets: GRAPHMILL_DATA_ROOT, else ../shared/data beside the repository."""
    root = Path(os.environ.get("GRAPHMILL_DATA_ROOT") or NEIGHBOUR)
    if not root.is_dir():
        pytest.skip(f"real data sets: not found at {root}; set GRAPHMILL_DATA_ROOT to run this test")
    return root
