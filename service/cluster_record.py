"""What is remembered of the embedded cluster, and where: a state file and a link in ``settings.home``.

The state file says all about a cluster that came up to the point of having a process. Two things are known without it,
because a start may die before it is written and a later version may not understand it: the mark that every process of
the cluster carries is derived from the home, and the link leads to the temporary folder.
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from planner.frozen import Frozen
from service.private_files import write_private
from service.processes import ProcessIdentity
from service.settings import Settings


class ClusterInfo(Frozen):
    """Where a running embedded cluster is, and what it was started with; the content of the state file."""

    head: ProcessIdentity
    dashboard_url: str
    agent_url: str
    token_file: Path
    temp_dir: Path
    log_file: Path
    mark: str
    environment: Mapping[str, str]
    graphmill_version: str
    ray_version: str

    def token(self) -> str:
        """The cluster's password: full control over it, so it stays in a file that only its owner reads."""
        return self.token_file.read_text().strip()

    @property
    def address_file(self) -> Path:
        """Where Ray notes the address at which further nodes join, the last thing that ``ray start`` does."""
        return self.temp_dir / "ray" / "ray_current_cluster"


def mark_of(settings: Settings) -> str:
    """What every process of this home's cluster has in its environment, and no other process."""
    return f"GRAPHMILL_CLUSTER={settings.home}"


def token_file(settings: Settings) -> Path:
    """Where the cluster's password lies."""
    return settings.home / "ray_token"


def temp_link(settings: Settings) -> Path:
    """The link to the cluster's temporary folder, which itself needs a shorter path than a home has."""
    return settings.home / "ray"


def read_record(settings: Settings) -> ClusterInfo | None:
    """What was recorded last; None when nothing was, or when another version wrote it."""
    try:
        return ClusterInfo.model_validate_json(_state_file(settings).read_text())
    except (FileNotFoundError, ValidationError):
        return None


def write_record(settings: Settings, info: ClusterInfo) -> None:
    """Remember a cluster."""
    write_private(_state_file(settings), info.model_dump_json(indent=1))


def remove_record(settings: Settings) -> None:
    """Forget the cluster and its password."""
    for file in (_state_file(settings), token_file(settings), temp_link(settings)):
        file.unlink(missing_ok=True)


def _state_file(settings: Settings) -> Path:
    return settings.home / "cluster.json"
