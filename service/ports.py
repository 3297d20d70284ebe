"""Free TCP ports of this machine for processes that must be told theirs before they start."""

import random
import socket

from planner.errors import GraphmillError

# Below Linux's range for outgoing connections (from 32768), above the one that Ray takes for workers (10002-19999): a
# port found free here is not given away by the kernel before its process binds it.
_RANGE = range(20_000, 32_000)


class NoFreePortError(GraphmillError):
    """The machine has too few free ports."""

    code = "no_free_port"


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nothing listens on. Raises ``NoFreePortError``."""
    found: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if len(found) == count:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < count:
        raise NoFreePortError(f"asked for {count} free ports in {_RANGE.start}-{_RANGE.stop - 1}, found {len(found)}")
    return found


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
