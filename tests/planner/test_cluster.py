"""What one rank may count on, wherever it is placed."""

import pytest

from planner.cluster import BARE_PROCESS_BYTES, ClusterSpec, NodeSpec, room_per_rank
from planner.errors import NoPlanFitsError
from tests.planner.made_up import cluster

GIB = 2**30


def test_ranks_on_one_node_share_its_cores_and_memory():
    room = room_per_rank(cluster(cores=8, memory_bytes=16 * GIB), num_ranks=4)
    assert room.num_cores == 2
    assert room.memory_bytes == int(0.9 * 16 * GIB / 4) - BARE_PROCESS_BYTES


def test_more_ranks_than_cores_get_a_fraction():
    assert room_per_rank(cluster(cores=2), num_ranks=4).num_cores == 0.5


def test_ranks_may_be_packed_onto_one_of_several_nodes():
    assert room_per_rank(cluster(cores=8, num_nodes=2), num_ranks=4).num_cores == 2


def test_a_node_never_takes_more_ranks_than_it_has_cpus():
    node = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=2, physical_cores=2)
    assert room_per_rank(ClusterSpec(nodes=(node,)), num_ranks=16).num_cores == 1


def test_the_weakest_node_decides():
    strong = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=8, physical_cores=64, memory_bytes=64 * GIB)
    weak = NodeSpec(node_id="b", address="10.0.0.2", num_cpus=8, physical_cores=4, memory_bytes=8 * GIB)
    room = room_per_rank(ClusterSpec(nodes=(strong, weak)), num_ranks=2)
    assert room == room_per_rank(ClusterSpec(nodes=(weak,)), num_ranks=2)


def test_unknown_memory_stays_unknown():
    assert room_per_rank(cluster(memory_bytes=0), num_ranks=2).memory_bytes is None


def test_gpu_ranks_count_on_their_gpu():
    node = NodeSpec(
        node_id="a",
        address="10.0.0.1",
        num_cpus=64,
        num_gpus=4,
        physical_cores=32,
        memory_bytes=64 * GIB,
        gpu_memory_bytes=80 * GIB,
    )
    room = room_per_rank(ClusterSpec(nodes=(node,)), num_ranks=8, gpus_per_rank=1)
    assert room.num_cores == 8
    assert room.memory_bytes == int(0.9 * 80 * GIB)
    assert room.host_memory_bytes == int(0.9 * 64 * GIB / 4) - BARE_PROCESS_BYTES
    part = room_per_rank(ClusterSpec(nodes=(node,)), num_ranks=1, gpus_per_rank=0.5)
    assert part.memory_bytes == int(0.9 * 80 * GIB / 2)


def test_only_nodes_that_hold_what_a_rank_asks_for_count():
    head = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=2, physical_cores=2, memory_bytes=2 * GIB)
    worker = NodeSpec(node_id="b", address="10.0.0.2", num_cpus=64, physical_cores=64, memory_bytes=256 * GIB)
    room = room_per_rank(ClusterSpec(nodes=(head, worker)), num_ranks=4, cpus_per_rank=16)
    assert room.num_cores == 16
    assert room.memory_bytes == int(0.9 * 256 * GIB / 4) - BARE_PROCESS_BYTES


def test_ranks_of_many_cpus_share_a_node_with_few_others():
    node = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=8, physical_cores=8)
    assert room_per_rank(ClusterSpec(nodes=(node, node)), num_ranks=4, cpus_per_rank=4).num_cores == 4
    tenths = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=0.3, physical_cores=1)
    assert room_per_rank(ClusterSpec(nodes=(tenths,)), num_ranks=3, cpus_per_rank=0.1).ranks_per_node == (3,)


def test_ranks_fill_the_roomiest_nodes_first():
    small = NodeSpec(node_id="a", address="10.0.0.1", num_cpus=2)
    large = NodeSpec(node_id="b", address="10.0.0.2", num_cpus=4)
    assert room_per_rank(ClusterSpec(nodes=(small, large)), num_ranks=5).ranks_per_node == (4, 1)
    assert room_per_rank(ClusterSpec(nodes=(small, large)), num_ranks=2).ranks_per_node == (2,)


@pytest.mark.parametrize(
    ("nodes", "asked", "words"),
    [
        ((), {}, "1 CPUs"),
        (cluster().nodes, {"gpus_per_rank": 1}, "1 GPUs"),
        (cluster().nodes, {"cpus_per_rank": 9}, "9"),
    ],
)
def test_a_cluster_without_what_a_rank_asks_for_is_refused(nodes, asked, words):
    with pytest.raises(NoPlanFitsError, match=f"no node of the cluster has the .*{words}"):
        room_per_rank(ClusterSpec(nodes=nodes), num_ranks=2, **asked)
