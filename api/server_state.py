"""Which API process serves this home, and where: a small file that clients on this machine and ``stop`` read.

A lock beside it, held for life, lets one process at a time serve a home; it falls with the process, whatever ends it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from planner.errors import GraphmillError
from planner.frozen import Frozen
from service.private_files import write_private
from service.processes import ProcessIdentity
from service.settings import Settings


class AlreadyServingError(GraphmillError):
    """Another API process serves this home."""

    code = "already_serving"


class ServerState(Frozen):
    """A serving API process, from before its cluster is started until after that has ended."""

    process: ProcessIdentity
    url: str


@contextmanager
def claim_home(settings: Settings) -> Iterator[None]:
    """Be the only API process of this home inside the block. Raises ``AlreadyServingError``."""
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (settings.home / "server.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            state = read_server_state(settings)
            who = "another process" if state is None else f"process {state.process.pid} ({state.url})"
            raise AlreadyServingError(
                f"{who} serves {settings.home} already; `graphmill stop` ends it, GRAPHMILL_HOME names another home"
            ) from error
        yield


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


def write_server_state(settings: Settings, *, url: str) -> None:
    """Say that this process serves this home."""
    state = ServerState(process=ProcessIdentity.of(os.getpid()), url=url)
    write_private(_file(settings), state.model_dump_json(indent=1))


def remove_server_state(settings: Settings) -> None:
    """Take back what this process said; another one's word is left alone."""
    state = read_server_state(settings)
    if state is not None and state.process.pid == os.getpid():
        _file(settings).unlink(missing_ok=True)


def _file(settings: Settings) -> Path:
    return settings.home / "api.json"
