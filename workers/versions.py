"""Code reaches a node as its installed package, so every process that a driver starts elsewhere compares versions."""

from importlib.metadata import version

from workers.errors import VersionMismatchError

DISTRIBUTION = "graphmill"


def installed_version() -> str:
    """The version of graphmill on this node."""
    return version(DISTRIBUTION)


def check_version(drivers: str, *, node: str) -> None:
    """Refuse to mix versions. Raises ``VersionMismatchError``."""
    installed = installed_version()
    if installed != drivers:
        raise VersionMismatchError(
            f"the driver runs {DISTRIBUTION} {drivers}, node {node} has {installed} installed; install {drivers} there",
            driver=drivers,
            installed=installed,
            node=node,
        )
