"""How the ranks of a run find each other: Ray Train's torch backend, told which network to use and how long to wait.

Gloo and NCCL look up the host's name to choose an address. Where that name leads elsewhere (several addresses, network
namespaces, no entry at all) ranks wait for each other in vain. The address under which Ray itself reached the node is
known to work, so every rank binds to the interface that has it.
"""

import os
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.train.torch import TorchConfig

from workers.comm.axis import COLLECTIVE_TIMEOUT_S

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
