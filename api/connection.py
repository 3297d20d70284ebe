"""How a client finds the service: address and key, given, from the settings, or from the server of this machine."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from api.auth import read_api_key
from api.server_state import last_server_state
from planner.errors import GraphmillError
from service.settings import Settings

_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class NoApiKeyError(GraphmillError):
    """No API key was given and none was found."""

    code = "no_api_key"


@dataclass(frozen=True)
class Connection:
    """Where the service is, and the key to it."""

    url: str
    api_key: str

    @property
    def is_local(self) -> bool:
        """Whether the service is on this machine, so that no proxy stands in between."""
        return _is_local(self.url)


def find_connection(settings: Settings, *, url: str | None = None, api_key: str | None = None) -> Connection:
    """Given values first, then the settings, then what a server of this home left.

    The key file is this machine's secret: it is not read for a service elsewhere. Raises ``NoApiKeyError``.
    """
    own = _own_url(settings)
    url = (url or settings.url or own).rstrip("/")
    key = api_key or settings.api_key
    if key is None and not (_is_local(url) or url == own):
        raise NoApiKeyError(f"no API key for {url}: GRAPHMILL_API_KEY is not set, and the key file is of this machine")
    key = key or read_api_key(settings)
    if key is None:
        raise NoApiKeyError(
            f"no API key: GRAPHMILL_API_KEY is not set and {settings.api_key_file} does not exist;"
            " start `graphmill serve` on this machine, or set GRAPHMILL_API_KEY and GRAPHMILL_URL for one elsewhere"
        )
    return Connection(url=url, api_key=key)


def _own_url(settings: Settings) -> str:
    state = last_server_state(settings)  # one that was killed is likely to be served again where it was
    return state.url if state is not None else f"http://127.0.0.1:{settings.port}"


def _is_local(url: str) -> bool:
    return urlsplit(url).hostname in _LOCAL
