"""Code reaches a node as its installed package, so every process that a driver starts elsewhere compares versions."""

from importlib.metadata import version

from workers.errors import VersionMismatchError

DISTRIBUTION = "graphmill"


def installed_version() -> str:
    """The version of graphmill on this node."""
    return version(DISTRIBUTION)


def check_version(wanted: str, *, node: str, whose: str = "the driver") -> None:
    """Refuse to mix versions; ``wanted`` is that of ``whose``. Raises ``VersionMismatchError``."""
    installed = installed_version()
    if installed != wanted:
        raise VersionMismatchError(
            f"{whose} runs {DISTRIBUTION} {wanted}, node {node} has {installed} installed; install {wanted} there",
            wanted=wanted,
            installed=installed,
            node=node,
        )
