"""The API key: made once for the embedded mode, kept in a file of its owner's, compared in constant time."""

import hashlib
import hmac
import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from planner.errors import GraphmillError
from service.settings import Settings

_PREFIX = "gmk_"  # lets a leaked key be recognised for what it is


class KeyFileError(GraphmillError):
    """The key file cannot be used; the message says why."""

    code = "key_file_invalid"


def ensure_api_key(settings: Settings) -> str:
    """The key that clients must send: the setting, else the one in the key file, which is made if missing.

    Safe in several processes at once. Raises ``KeyFileError``.
    """
    if settings.api_key is not None:
        return settings.api_key
    file = settings.api_key_file
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=".api_key-", dir=file.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(_PREFIX + secrets.token_urlsafe(32) + "\n")
        with suppress(FileExistsError):
            os.link(draft, file)  # whole or not at all, and never over another one
    finally:
        os.unlink(draft)
    key = read_api_key(settings)
    assert key is not None, "the file was there a moment ago"
    return key


def read_api_key(settings: Settings) -> str | None:
    """The key that a client on this machine finds by itself, None if there is none. Raises ``KeyFileError``."""
    if settings.api_key is not None:
        return settings.api_key
    try:
        _check_private(settings.api_key_file)
        key = settings.api_key_file.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"cannot read the API key: {error}", path=str(settings.api_key_file)) from error
    if not key:
        raise KeyFileError(f"{settings.api_key_file} is empty; delete it and start `graphmill serve` again")
    return key


class KeyCheck:
    """Knows the key's hash, not the key."""

    def __init__(self, key: str) -> None:
        self._digest = _digest(key)

    def accepts(self, given: str) -> bool:
        """Whether this is the key; the time it takes says nothing about how close it was."""
        return hmac.compare_digest(self._digest, _digest(given))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogatepass")).digest()


def _check_private(file: Path) -> None:
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise KeyFileError(
            f"{file} can be read by others (mode {mode:04o}); run `chmod 600 {file}`, or delete it to get a new key",
            path=str(file),
        )
