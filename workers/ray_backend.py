"""How the ranks of a run find each other: Ray Train's torch backend, told which network to use and how long to wait.

Replicas that outlive each other have no process group that is theirs for good, but a key-value store in the process of
Ray Train's controller, which lives as long as the run. There they decide who goes together; Ray starts one that has
died anew, alone, in its place (``has_replica_groups``).

Gloo and NCCL look up the host's name to choose an address. Where that name leads elsewhere (several addresses, network
namespaces, no entry at all) ranks wait for each other in vain. The address under which Ray itself reached the node is
known to work, so every rank binds to the interface that has it.
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import ray
import torch.distributed as dist
from ray.train.backend import Backend
from ray.train.torch import TorchConfig
from ray.train.v2._internal.execution.worker_group import ReplicaGroup

from workers.comm.axis import COLLECTIVE_TIMEOUT_S
from workers.mqgnn.racom.board import say_gone

_TorchBackend: type[Any] = TorchConfig().backend_cls


@dataclass
class RankGroupConfig(TorchConfig):
    """``TorchConfig`` for our ranks; ``backend`` None chooses nccl for ranks with GPUs and gloo otherwise."""

    timeout_s: int = COLLECTIVE_TIMEOUT_S

    @property
    def backend_cls(self) -> type[Any]:
        """The class that sets the group up on the ranks."""
        return RankGroupBackend


class RankGroupBackend(_TorchBackend):
    """Ray's backend with the network chosen first, and a parting that does not wait for dead ranks."""

    def on_start(self, worker_group: Any, backend_config: RankGroupConfig) -> None:
        """Let each rank choose its interface, then build the group."""
        worker_group.execute(use_rays_network)
        super().on_start(worker_group, backend_config)

    def on_shutdown(self, worker_group: Any, backend_config: RankGroupConfig) -> None:
        """Nothing to take apart: the processes of the ranks end right after, and their sockets with them.

        Ray would have each rank leave the group and wait up to 30 s for it, which a rank blocked in a collective
        with a dead peer spends in full.
        """


@dataclass
class ReplicasConfig(TorchConfig):
    """For replicas that outlive each other."""

    @property
    def backend_cls(self) -> type[Any]:
        """The class that gives the replicas their store."""
        return ReplicasBackend


class ReplicasBackend(Backend):  # type: ignore[misc]  # Ray has no types here
    """Every rank is a group of its own, which Ray replaces by itself. One per process, as Ray makes backends.

    ``store`` is that of the present run of all ranks, None before it.
    """

    has_replica_groups = True

    def __init__(self) -> None:
        self.store: dist.TCPStore | None = None

    def on_start(self, worker_group: Any, backend_config: ReplicasConfig) -> None:
        """Tell all ranks, or the one that is replaced, where the store is; all begin with an empty one."""
        address = ray.util.get_node_ip_address()
        if self.store is None or not isinstance(worker_group, ReplicaGroup):
            self.store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
        worker_group.execute(use_rays_network)
        worker_group.execute(remember_store, address, self.store.port)

    def on_shutdown(self, worker_group: Any, backend_config: ReplicasConfig) -> None:
        """Of a rank that is about to be replaced tell the others that it is gone: Ray knows before they can be sure."""
        if self.store is None or not isinstance(worker_group, ReplicaGroup):
            return
        for worker in worker_group.get_workers():
            say_gone(self.store, place=worker.distributed_context.world_rank)


def remember_store(address: str, port: int) -> None:
    """Where ``replica_store`` finds it, in the names that torch uses."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)


def replica_store() -> dist.TCPStore:
    """The store of this run, on a rank."""
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)  # one replica waits so long for what another says first
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)


def use_rays_network() -> None:
    """Make gloo and NCCL of this process bind to the interface that carries the node's address in Ray."""
    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface


def interface_of(address: str) -> str | None:
    """The network interface of this machine that has ``address``; None when none has (it is translated on the way)."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    return None
