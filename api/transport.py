"""Requests that survive a restart of the service: refused connections are tried again with growing pauses.

Only requests that may be repeated are: reads, cancels, and a submission that carries its idempotency key. The clock of
the patience starts anew with every answer, so one blip does not use it up for the next.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from api.client_errors import RequestRefusedError, ServiceUnreachableError
from api.connection import Connection
from api.schemas.problems import PROBLEM_MEDIA_TYPE, Problem

_TIMEOUT_S = 30.0
_TIMEOUT = httpx.Timeout(_TIMEOUT_S, connect=5.0)
_BUSY = frozenset({429, 503})
RETRIED = (httpx.TransportError, RequestRefusedError)  # what ``Transport.pause_after`` judges


class Pauses:
    """Pauses between attempts, growing to ``longest_s``, for at most ``patience_s`` since the last ``reset``."""

    def __init__(
        self, patience_s: float, *, longest_s: float = 3.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._patience_s = patience_s
        self._longest_s = longest_s
        self._sleep = sleep
        self.reset()

    def reset(self) -> None:
        """There was an answer."""
        self._since: float | None = None
        self._next_s = 0.1

    def wait(self, *, at_least_s: float = 0.0) -> bool:
        """Sleep before the next attempt; False if the patience is used up."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._patience_s:
            return False
        left_s = self._patience_s - (now - self._since)
        self._sleep(min(max(self._next_s, at_least_s), left_s))
        self._next_s = min(self._next_s * 2, self._longest_s)
        return True


class Transport:
    """One connection to the service."""

    def __init__(self, connection: Connection, *, patience_s: float) -> None:
        self.patience_s = patience_s
        self.url = connection.url
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.api_key}"},
            timeout=_TIMEOUT,
            trust_env=not connection.is_local,
        )

    def close(self) -> None:
        """Drop the connections."""
        self._http.close()

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Send until there is an answer. Raises ``RequestRefusedError``, ``ServiceUnreachableError``."""
        pauses = Pauses(self.patience_s)
        while True:
            try:
                response = self._http.request(method, path, **arguments)
                check(response)
                return response
            except RETRIED as error:
                self.pause_after(error, pauses)

    @contextmanager
    def stream(self, path: str, *, read_timeout_s: float, **arguments: Any) -> Iterator[httpx.Response]:
        """One attempt to open a stream. Raises what httpx raises, and ``RequestRefusedError``."""
        timeout = httpx.Timeout(read_timeout_s, connect=5.0)
        with self._http.stream("GET", path, timeout=timeout, **arguments) as response:
            if response.status_code >= 400:
                response.read()
            check(response)
            yield response

    def save(self, path: str, file: Path) -> None:
        """Write what is at ``path`` into ``file``, from its beginning again when the connection breaks.

        Raises ``RequestRefusedError``, ``ServiceUnreachableError``.
        """
        pauses = Pauses(self.patience_s)
        while True:
            try:
                with self.stream(path, read_timeout_s=_TIMEOUT_S) as response, file.open("wb") as target:
                    for piece in response.iter_bytes():
                        target.write(piece)
                return
            except RETRIED as error:
                self.pause_after(error, pauses)

    def pause_after(self, cause: Exception, pauses: Pauses) -> None:
        """Sleep before the next attempt, or raise what ``cause`` comes to if there is no point in one.

        Raises ``RequestRefusedError``, ``ServiceUnreachableError``.
        """
        if isinstance(cause, RequestRefusedError):
            if cause.problem.status not in _BUSY or not pauses.wait(at_least_s=cause.details["retry_after_s"]):
                raise cause
        elif isinstance(cause, httpx.UnsupportedProtocol) or not pauses.wait():
            raise ServiceUnreachableError(
                f"no answer from {self.url} for {self.patience_s:g} s ({cause}); is `graphmill serve` running?"
                " GRAPHMILL_URL names another address",
                url=self.url,
            ) from cause


def check(response: httpx.Response) -> None:
    """Raise ``RequestRefusedError`` unless the answer is a success."""
    if response.status_code < 400:
        return
    problem = _problem(response)
    raise RequestRefusedError(
        problem.detail, problem=problem.model_dump(mode="json"), retry_after_s=_retry_after(response)
    )


def _problem(response: httpx.Response) -> Problem:
    if response.headers.get("content-type", "").startswith(PROBLEM_MEDIA_TYPE):
        try:
            return Problem.model_validate_json(response.content)
        except ValidationError:
            pass
    return Problem(
        type="about:blank",
        code="unknown_answer",
        title="The answer is not Graphmill's",
        status=response.status_code,
        detail=f"{response.request.url} answered {response.status_code}, and not as Graphmill does",
    )


def _retry_after(response: httpx.Response) -> float:
    text = response.headers.get("Retry-After", "0")
    return min(float(text), 10.0) if text.isdigit() else 0.0
