"""The embedded cluster behind a client that outlives it. Ray itself is played by fakes."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from api import embedded_cluster as module
from api.embedded_cluster import EmbeddedCluster
from service.cluster import ClusterUnreachableError, RunState
from service.embedded import ClusterStartError
from service.settings import Settings
from tests.kit.fake_cluster import FakeCluster


@dataclass
class Ray:
    """At most one head runs; each start makes a cluster that knows of no runs."""

    running: FakeCluster | None = None
    starts: int = 0
    broken: bool = False

    dashboard_url = "http://fake"

    def find(self, _: Settings) -> FakeCluster | None:
        return self.running

    def start(self, _: Settings) -> "Ray":
        if self.broken:
            raise ClusterStartError("no memory is left")
        if self.running is None:
            self.starts += 1
            self.running = FakeCluster()
        return self

    def token(self) -> str:
        return "token"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    ray = Ray()
    monkeypatch.setattr(module, "attach", ray.find)
    monkeypatch.setattr(module, "start_cluster", ray.start)
    monkeypatch.setattr(module, "RayCluster", lambda _url, token: ray.running)
    return ray


def test_a_head_that_died_is_replaced_and_its_runs_are_missing(ray: Ray, tmp_path: Path) -> None:
    cluster = EmbeddedCluster(Settings(home=tmp_path))
    cluster.submit("job-1", submission_id="job-1", entrypoint="true", metadata={})
    assert cluster.status("job-1").state is RunState.PENDING
    ray.running = None
    assert cluster.shape().num_cpus == 4
    assert ray.starts == 2
    assert cluster.status("job-1").state is RunState.MISSING


def test_a_head_that_lives_is_left_alone(ray: Ray, tmp_path: Path) -> None:
    cluster = EmbeddedCluster(Settings(home=tmp_path))
    cluster.shape()
    assert (ray.starts, cluster.was_running) == (1, False)
    assert EmbeddedCluster(Settings(home=tmp_path)).was_running


def test_a_head_that_cannot_be_replaced_is_a_cluster_that_cannot_be_reached(ray: Ray, tmp_path: Path) -> None:
    cluster = EmbeddedCluster(Settings(home=tmp_path))
    ray.running, ray.broken = None, True
    with pytest.raises(ClusterUnreachableError, match="no memory is left"):
        cluster.shape()
    ray.broken = False
    assert cluster.shape().num_cpus == 4
