"""What the planner knows of the hardware: nodes, their devices and their memory."""

from planner.frozen import Frozen


class NodeSpec(Frozen):
    """One machine of the cluster. ``num_cpus`` are the logical CPUs that Ray advertises, ``physical_cores`` what it has."""

    node_id: str
    address: str
    num_cpus: float
    num_gpus: float = 0.0
    physical_cores: int = 1
    memory_bytes: int = 0
    device_name: str = "cpu"


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
