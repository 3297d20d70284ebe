"""One embedded cluster for all tests of this folder; each test submits at most one job."""

from collections.abc import Iterator

import pytest

from tests.kit.ray_cluster import LiveCluster, live_cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("home")) as running:
        yield running
