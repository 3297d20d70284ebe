"""Small graphs by hand, and a cache that all tests of real sets share, so that each set is prepared once."""

import socket
from pathlib import Path

import numpy as np
import pytest

from workers.data.edges import from_edges
from workers.data.features import DenseFeatures
from workers.data.graph import Graph
from workers.data.paths import DataPaths


@pytest.fixture(scope="session")
def real_paths(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> DataPaths:
    return DataPaths(root=data_root, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def bare_paths(tmp_path: Path) -> DataPaths:
    """No data root, an empty cache."""
    return DataPaths(root=None, cache=tmp_path / "cache")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def path_graph() -> Graph:
    """0 - 1 - 2 and the isolated node 3; two features, two classes, one node in each part."""
    indptr, indices = from_edges(np.array([0, 1]), np.array([1, 2]), num_nodes=4)
    return Graph(
        indptr,
        indices,
        features=DenseFeatures(np.arange(8, dtype=np.float32).reshape(4, 2)),
        y=np.array([0, 1, 0, 1]),
        split=np.array([0, 1, 2, -1], dtype=np.int8),
    )
