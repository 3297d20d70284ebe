"""A whole API inside a test: real sockets, real store, a fake cluster behind it; it can be stopped and started."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from api.app import create_app
from api.auth import read_api_key
from api.deps import Backend
from api.main import build_backend
from service.settings import Settings
from service.store.job_store import JobStore
from tests.kit.builders import fresh_store, sqlite_url
from tests.kit.fake_cluster import FakeCluster


class LiveApi:
    """Serves ``create_app`` on a port of its own. ``stop`` and ``start`` again keep port, store and cluster."""

    def __init__(self, home: Path, **settings: Any) -> None:
        quick: dict[str, Any] = {"dispatch_interval_s": 0.02, **settings}
        self.settings = Settings(home=home, database_url=sqlite_url(home), **quick)
        self.cluster = FakeCluster()
        self.store: JobStore = fresh_store(home)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()
        self.key = read_api_key(self.settings)

    def start(self) -> None:
        self.backend: Backend = build_backend(self.settings, store=self.store, cluster=self.cluster)
        app = create_app(self.backend)
        config = uvicorn.Config(app, port=self.port, log_level="critical", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self) -> None:
        self.backend.closing = True
        self._server.should_exit = True
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self.store.close()

    def http(self, *, key: str | None = "right") -> httpx.Client:
        """A plain HTTP client, with the right key unless told otherwise."""
        headers = {} if key is None else {"Authorization": f"Bearer {self.key if key == 'right' else key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, trust_env=False)


def wait_until(condition: Callable[[], Any], *, timeout_s: float = 20.0) -> None:
    """Wait for what another thread does; fails loudly."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
