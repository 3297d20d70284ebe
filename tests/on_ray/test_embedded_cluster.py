"""Life of the embedded cluster as a whole: it is found again, and its end leaves nothing."""

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from service.embedded import attach, start_cluster, stop_cluster
from service.processes import members_of
from service.settings import Settings
from tests.kit.ray_cluster import LiveCluster, shared_memory

pytestmark = pytest.mark.ray


def test_a_second_start_attaches_to_the_same_cluster(cluster: LiveCluster) -> None:
    assert start_cluster(cluster.settings) == cluster.info


def test_the_nodes_advertise_more_cpus_than_cores_and_say_how_many_cores_they_have(cluster: LiveCluster) -> None:
    (node,) = cluster.client.shape().nodes
    assert node.num_cpus >= 8
    assert node.num_cpus > node.physical_cores
    assert node.device_name != "cpu"


def test_nobody_gets_in_without_the_token(cluster: LiveCluster) -> None:
    assert cluster.info.token_file.stat().st_mode & 0o077 == 0
    assert cluster.ask_as("", "/api/jobs/").status_code == 401
    assert cluster.ask_as("Bearer " + "0" * 64, "/api/jobs/").status_code == 403


def test_two_clusters_live_side_by_side_and_the_end_of_one_leaves_nothing(cluster: LiveCluster, tmp_path: Path) -> None:
    settings, segments = Settings(home=tmp_path), shared_memory()
    info = start_cluster(settings)
    assert stop_cluster(settings)
    assert attach(settings) is None
    assert members_of(info.head, mark=info.mark) == []
    assert not info.temp_dir.exists()
    assert sorted(path.name for path in settings.home.iterdir()) == ["cluster.lock", "ray.log"]
    assert shared_memory() <= segments
    assert cluster.info.head.is_alive()
    assert cluster.client.shape().nodes


def test_no_port_of_the_cluster_can_be_reached_from_another_machine(cluster: LiveCluster) -> None:
    listening = set()
    for process in members_of(cluster.info.head, mark=cluster.info.mark):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            connections = process.net_connections("inet")
            listening |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
