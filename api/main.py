"""The API process: composes settings, store, cluster, dispatcher and routes, and serves until it is told to end.

    claim the home ─▶ take the port ─▶ open the store ─▶ attach to the cluster, or start it ─▶ serve

Started as ``python -m api.main`` (``graphmill serve`` does so). Without an external cluster it attaches to the embedded
one, or starts it. SIGINT, SIGTERM and SIGHUP end both; a SIGKILL, or a fault of ours, ends this process only, and the
next one attaches again. What can fail for a reason of the user's comes before the cluster.
"""

import argparse
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from types import FrameType

import uvicorn

from api.app import create_app
from api.auth import KeyCheck, ensure_api_key
from api.deps import Backend
from api.embedded_cluster import EmbeddedCluster
from api.readiness import DatabaseCheck
from api.server_state import claim_home, remove_server_state, write_server_state
from planner.errors import GraphmillError
from service.cluster import ClusterClient
from service.dispatch_loop import DispatchLoop
from service.dispatcher import Dispatcher
from service.embedded import stop_cluster
from service.jobs import Jobs
from service.policies import Patience
from service.ray_cluster import RayCluster
from service.settings import Settings, check_serving, load_settings
from service.store.engine import open_store
from service.store.job_store import JobStore

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BACKLOG = 1024
_SHUTDOWN_S = 5  # open streams end by themselves well before


class CannotListenError(GraphmillError):
    """The address to listen on is taken, or not this machine's."""

    code = "cannot_listen"


def build_backend(settings: Settings, *, store: JobStore, cluster: ClusterClient) -> Backend:
    """Put together everything that the routes stand on."""
    patience = Patience(cancel_grace_s=settings.cancel_grace_s, driver_start_s=settings.driver_start_s)
    holder = f"{socket.gethostname()}:{os.getpid()}"
    dispatcher = Dispatcher(store, cluster, holder=holder, patience=patience)
    loop = DispatchLoop(dispatcher, interval_s=settings.dispatch_interval_s)
    return Backend(
        settings=settings,
        jobs=Jobs(store, settings, wake=loop.wake),
        loop=loop,
        key=KeyCheck(ensure_api_key(settings)),
        database=DatabaseCheck(lambda: store.take_lease("readiness", holder=holder, seconds=1.0)),
        cluster=cluster,
    )


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Serve until a signal comes. Raises ``GraphmillError`` for what a user can mend."""
    check_serving(settings)
    with claim_home(settings), _listening(settings) as (listener, url), _stated(settings, url=url):
        ensure_api_key(settings)  # a key file that cannot be used is told before a cluster is started
        with closing(open_store(settings.database_url)) as store, _cluster(settings) as cluster:
            app = create_app(build_backend(settings, store=store, cluster=cluster))
            server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_SHUTDOWN_S))
            _announce(settings, url=url, dashboard_url=cluster.dashboard_url, as_json=as_json)
            server.run(sockets=[listener])
            if not server.started:
                raise RuntimeError("the application did not start; its log says why")


class _Server(uvicorn.Server):
    """Tells open event streams to end as soon as a signal comes, instead of cutting them off later."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGINT and SIGTERM."""
        self.config.app.state.backend.closing = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


@contextmanager
def _listening(settings: Settings) -> Iterator[tuple[socket.socket, str]]:
    """Take the port first: a taken one is told before a cluster is started. Early requests wait until we serve."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise CannotListenError(
                f"cannot listen on {settings.host}:{settings.port} ({error}); set GRAPHMILL_PORT to a free port, or to"
                " 0 to have one chosen",
            ) from error
        host, port = listener.getsockname()[:2]
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        yield listener, f"http://{host}:{port}"


@contextmanager
def _stated(settings: Settings, *, url: str) -> Iterator[None]:
    """Be found by `graphmill stop` and by clients of this machine, also while the cluster starts and ends."""
    write_server_state(settings, url=url)
    try:
        yield
    finally:
        remove_server_state(settings)


@contextmanager
def _cluster(settings: Settings) -> Iterator[ClusterClient]:
    """The external cluster, or the embedded one, which ends with us unless we are killed.

    A fault of ours is no order to end the jobs of others: a cluster that was here before stays.
    """
    if settings.ray_dashboard is not None:
        yield RayCluster(settings.ray_dashboard, token=settings.ray_token)
        return
    cluster = EmbeddedCluster(settings)
    stays = False
    try:
        yield cluster
    except Exception:
        stays = cluster.was_running
        raise
    finally:
        if not stays:
            for again in _SIGNALS:  # a second Ctrl-C must not leave half a cluster behind
                signal.signal(again, signal.SIG_IGN)
            stop_cluster(settings)


def _announce(settings: Settings, *, url: str, dashboard_url: str, as_json: bool) -> None:
    facts = {"api": url, "docs": f"{url}/docs", "dashboard": dashboard_url, "key_file": str(settings.api_key_file)}
    if as_json:
        lines = json.dumps(facts)
    else:
        lines = (
            f"Graphmill serves at {url} (its reference: {url}/docs)\n"
            f"Ray dashboard        {dashboard_url}\n"
            f"API key              {'from GRAPHMILL_API_KEY' if settings.api_key else settings.api_key_file}\n"
            "Ctrl-C ends the API and the embedded cluster."
        )
    sys.stdout.write(lines + "\n")
    sys.stdout.flush()


def _on_terminate(_signal: int, _frame: FrameType | None) -> None:
    """SIGTERM unwinds like Ctrl-C does, so that the cluster is ended too."""
    raise SystemExit(0)


def _on_hang_up(_signal: int, _frame: FrameType | None) -> None:
    """The terminal is gone: end as on SIGTERM, which uvicorn knows how to do in good order."""
    signal.raise_signal(signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m api.main``; the exit code is 0 after a signal, 2 for what a user can mend."""
    parser = argparse.ArgumentParser(prog="python -m api.main", description="Serve the Graphmill API.")
    parser.add_argument("--host", help="address to listen on (GRAPHMILL_HOST)")
    parser.add_argument("--port", type=int, help="port to listen on (GRAPHMILL_PORT); 0 chooses a free one")
    parser.add_argument("--json", action="store_true", help="print the addresses as one line of JSON")
    options = parser.parse_args(arguments)
    given = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGTERM, _on_terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
        signal.signal(signal.SIGHUP, _on_hang_up)
    try:
        serve(load_settings(**given), as_json=options.json)
    except GraphmillError as error:
        sys.stderr.write(f"graphmill: {error.message}\n")
        return 2
    except (KeyboardInterrupt, SystemExit):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
