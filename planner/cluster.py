"""What the planner knows of the hardware: nodes, their devices and their memory; and what one rank gets of it."""

from typing import Literal

from planner.errors import NoPlanFitsError
from planner.frozen import Frozen

# Chosen: the rest is left to the system and to other processes of the node.
USABLE_MEMORY_FRACTION = 0.9
# Measured: a process that has imported torch, torch_geometric and numba takes 445 MB before it builds anything; Ray's
# own part of a worker comes on top.
BARE_PROCESS_BYTES = 512 * 2**20


class NodeSpec(Frozen):
    """One machine of the cluster. ``num_cpus`` are logical CPUs that Ray advertises, ``physical_cores`` what it has.

    ``memory_bytes`` and ``gpu_memory_bytes`` (of one GPU) are 0 where they are not known.
    """

    node_id: str
    address: str
    num_cpus: float
    num_gpus: float = 0.0
    physical_cores: int = 1
    memory_bytes: int = 0
    device_name: str = "cpu"
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

    ``memory_bytes`` is what a rank may take over its bare process; None where the cluster does not say.
    """

    num_cores: float
    memory_bytes: int | None


def room_per_rank(cluster: ClusterSpec, *, num_ranks: int, device_kind: Literal["cpu", "cuda"] = "cpu") -> RankRoom:
    """The least that any rank gets when the ranks are packed onto as few nodes as the cluster allows.

    Raises ``NoPlanFitsError`` when no node can take a rank.
    """
    hosts = [node for node in cluster.nodes if _capacity(node, device_kind) >= 1]
    if not hosts:
        asked = "a GPU" if device_kind == "cuda" else "a CPU"
        raise NoPlanFitsError(
            f"no node of the cluster has {asked} for a rank ({len(cluster.nodes)} nodes seen); add nodes that do"
        )
    crowds = [min(num_ranks, _capacity(node, device_kind)) for node in hosts]
    memory = [_memory_bytes(node, crowd, device_kind) for node, crowd in zip(hosts, crowds, strict=True)]
    known = [size for size in memory if size is not None]
    return RankRoom(
        num_cores=min(node.physical_cores / crowd for node, crowd in zip(hosts, crowds, strict=True)),
        memory_bytes=min(known) if known else None,
    )


def _capacity(node: NodeSpec, device_kind: str) -> int:
    return int(node.num_gpus if device_kind == "cuda" else node.num_cpus)


def _memory_bytes(node: NodeSpec, num_ranks: int, device_kind: str) -> int | None:
    if device_kind == "cuda":
        return int(USABLE_MEMORY_FRACTION * node.gpu_memory_bytes) if node.gpu_memory_bytes else None
    if not node.memory_bytes:
        return None
    return max(0, int(USABLE_MEMORY_FRACTION * node.memory_bytes / num_ranks) - BARE_PROCESS_BYTES)
