"""The shell around a rank, without a cluster."""

import socket
from importlib.metadata import version

import psutil
import pytest

from planner.plan import MQGNNPlan
from tests.on_ray.jobs import sampled
from workers.errors import VersionMismatchError
from workers.ray_backend import RankGroupBackend, RankGroupConfig, interface_of
from workers.ray_loop import LoopConfig
from workers.spec import TrainSpec
from workers.versions import DISTRIBUTION, check_version


def test_the_drivers_version_is_accepted_and_any_other_named() -> None:
    installed = version(DISTRIBUTION)
    check_version(installed, node="10.0.0.2")
    with pytest.raises(VersionMismatchError, match=rf"driver runs graphmill 9\.9.*10\.0\.0\.2 has {installed}"):
        check_version("9.9", node="10.0.0.2")


def test_what_a_rank_is_told_survives_the_way_through_json() -> None:
    spec = TrainSpec.model_validate({name: value for name, value in sampled().items() if name != "name"})
    plan = MQGNNPlan(world_size=2, batch_size=8, fanouts=(5, 5))
    told = LoopConfig(
        graphmill_version="1", spec=spec, plan=plan, data_root=None, data_cache="/cache", job_dir="/jobs/1"
    )
    assert LoopConfig.model_validate(told.model_dump(mode="json")) == told


def test_the_interface_is_the_one_that_carries_the_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    for name, entries in psutil.net_if_addrs().items():
        addresses = [entry.address for entry in entries if entry.family == socket.AF_INET]
        assert all(interface_of(address) == name for address in addresses)


def test_an_address_of_no_interface_leaves_the_choice_to_the_library() -> None:
    assert interface_of("203.0.113.7") is None


def test_the_group_is_built_by_our_backend() -> None:
    assert RankGroupConfig(backend="gloo").backend_cls is RankGroupBackend
