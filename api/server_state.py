"""Which API process serves this home, and where: a small file that clients on this machine and ``stop`` read."""

import os
import tempfile
from pathlib import Path

from pydantic import ValidationError

from planner.frozen import Frozen
from service.processes import ProcessIdentity
from service.settings import Settings


class ServerState(Frozen):
    """A serving API process."""

    process: ProcessIdentity
    url: str
    dashboard_url: str


def read_server_state(settings: Settings) -> ServerState | None:
    """The API process that serves this home now, None if none does."""
    state = last_server_state(settings)
    return state if state is not None and state.process.is_alive() else None


def last_server_state(settings: Settings) -> ServerState | None:
    """The API process that served this home last: one that was killed could not take its file with it."""
    try:
        return ServerState.model_validate_json(_file(settings).read_text())
    except (FileNotFoundError, ValidationError):
        return None


def write_server_state(settings: Settings, *, url: str, dashboard_url: str) -> None:
    """Say that this process serves this home."""
    state = ServerState(process=ProcessIdentity.of(os.getpid()), url=url, dashboard_url=dashboard_url)
    file = _file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=".api-", dir=file.parent)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(state.model_dump_json(indent=1))
    os.replace(draft, file)


def remove_server_state(settings: Settings) -> None:
    """Take back what this process said; another one's word is left alone."""
    state = read_server_state(settings)
    if state is not None and state.process.pid == os.getpid():
        _file(settings).unlink(missing_ok=True)


def _file(settings: Settings) -> Path:
    return settings.home / "api.json"
