"""What the planner knows of the hardware: nodes, their devices and their memory; and what one rank gets of it."""

from planner.errors import NoPlanFitsError
from planner.frozen import Frozen

# Chosen: the rest is left to the system and to other processes of the node.
USABLE_MEMORY_FRACTION = 0.9
# Measured: a process that has imported torch, torch_geometric and numba takes 445 MB before it builds anything; Ray's
# own part of a worker comes on top.
BARE_PROCESS_BYTES = 512 * 2**20
_ROUNDING = 1e-6  # 0.3 CPUs hold three ranks of 0.1


class NodeSpec(Frozen):
    """One machine of the cluster. ``num_cpus`` are logical CPUs that Ray advertises, ``physical_cores`` what it has.

    ``device_name`` names its GPUs, or its processor where it has none; ``cpu_name`` always the processor.
    ``memory_bytes`` and ``gpu_memory_bytes`` (of one GPU) are 0 where they are not known.
    """

    node_id: str
    address: str
    num_cpus: float
    num_gpus: float = 0.0
    physical_cores: int = 1
    memory_bytes: int = 0
    device_name: str = "cpu"
    cpu_name: str = "cpu"
    gpu_memory_bytes: int = 0


class ClusterSpec(Frozen):
    """The live nodes of a cluster and what of them is free at ``observed_at`` (ISO 8601, UTC)."""

    nodes: tuple[NodeSpec, ...]
    free_cpus: float = 0.0
    free_gpus: float = 0.0
    ray_version: str = ""
    observed_at: str = ""

    @property
    def num_cpus(self) -> float:
        """Logical CPUs of all nodes."""
        return sum(node.num_cpus for node in self.nodes)

    @property
    def num_gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(node.num_gpus for node in self.nodes)


class RankRoom(Frozen):
    """What one rank may count on, wherever it is placed: physical cores (a fraction when shared) and memory.

    ``memory_bytes`` is what it may take of the memory that its model lives in, ``host_memory_bytes`` of main memory
    over its bare process: the same for a rank that computes on CPUs. None where the cluster does not say.
    ``ranks_per_node`` is how the ranks lie, fullest node first.
    """

    num_cores: float
    memory_bytes: int | None
    host_memory_bytes: int | None
    ranks_per_node: tuple[int, ...]


def list_hosts(cluster: ClusterSpec, *, cpus_per_rank: float = 1.0, gpus_per_rank: float = 0.0) -> tuple[NodeSpec, ...]:
    """The nodes that can take at least one rank. Raises ``NoPlanFitsError`` when there is none."""
    hosts = tuple(node for node in cluster.nodes if _capacity(node, cpus_per_rank, gpus_per_rank) >= 1)
    if not hosts:
        asked = f"{cpus_per_rank:g} CPUs" + (f" and {gpus_per_rank:g} GPUs" if gpus_per_rank else "")
        largest = max(((node.num_cpus, node.num_gpus) for node in cluster.nodes), default=(0.0, 0.0))
        raise NoPlanFitsError(
            f"no node of the cluster has the {asked} that a rank asks for ({len(cluster.nodes)} nodes seen, the largest"
            f" with {largest[0]:g} CPUs and {largest[1]:g} GPUs); ask for less per rank, or add nodes that have it"
        )
    return hosts


def room_per_rank(
    cluster: ClusterSpec, *, num_ranks: int, cpus_per_rank: float = 1.0, gpus_per_rank: float = 0.0
) -> RankRoom:
    """The least that any rank gets when the ranks are packed onto as few nodes as the cluster allows.

    A rank computes on a GPU if it asks for any, or for a part of one. Raises ``NoPlanFitsError`` when no node can take
    a rank.
    """
    hosts = list_hosts(cluster, cpus_per_rank=cpus_per_rank, gpus_per_rank=gpus_per_rank)
    capacities = [_capacity(node, cpus_per_rank, gpus_per_rank) for node in hosts]
    crowds = [min(num_ranks, capacity) for capacity in capacities]
    host_memory = [_host_memory_bytes(node, crowd) for node, crowd in zip(hosts, crowds, strict=True)]
    memory = [_gpu_memory_bytes(node, gpus_per_rank) for node in hosts] if gpus_per_rank else host_memory
    return RankRoom(
        num_cores=min(node.physical_cores / crowd for node, crowd in zip(hosts, crowds, strict=True)),
        memory_bytes=_least_known(memory),
        host_memory_bytes=_least_known(host_memory),
        ranks_per_node=_pack(num_ranks, capacities),
    )


def _capacity(node: NodeSpec, cpus_per_rank: float, gpus_per_rank: float) -> int:
    """How many ranks ``node`` can take at once."""
    asked = ((node.num_cpus, cpus_per_rank), (node.num_gpus, gpus_per_rank))
    return min(int(has / wanted + _ROUNDING) for has, wanted in asked if wanted > 0)


def _pack(num_ranks: int, capacities: list[int]) -> tuple[int, ...]:
    """Ranks per node when the roomiest nodes are filled first; what finds no place is left out."""
    crowds: list[int] = []
    for capacity in sorted(capacities, reverse=True):
        crowds.append(min(num_ranks - sum(crowds), capacity))
    return tuple(crowd for crowd in crowds if crowd)


def _host_memory_bytes(node: NodeSpec, num_ranks: int) -> int | None:
    if not node.memory_bytes:
        return None
    return max(0, int(USABLE_MEMORY_FRACTION * node.memory_bytes / num_ranks) - BARE_PROCESS_BYTES)


def _gpu_memory_bytes(node: NodeSpec, gpus_per_rank: float) -> int | None:
    """A rank uses one GPU, or the part of it that it asks for."""
    if not node.gpu_memory_bytes:
        return None
    return int(USABLE_MEMORY_FRACTION * node.gpu_memory_bytes * min(1.0, gpus_per_rank))


def _least_known(sizes: list[int | None]) -> int | None:
    return min((size for size in sizes if size is not None), default=None)
