"""``make demo``: one job of each kind, all the way through, on a server and a cluster that end with it.

    serve (API, embedded cluster) ─▶ submit a Graphormer, follow it, show it ─▶ the same for GraphSAGE ─▶ stop

Everything goes through the Python client, as a user's own program would. Job files stay in ``.graphmill/demo`` (or
``GRAPHMILL_HOME``); processes do not. The exit code is 0 only if both jobs finished and nothing is left running.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from api import cli_output as output
from api.cli_follow import follow_with_progress
from api.cli_words import open_console
from api.client import GraphmillClient
from api.server_stop import stop_everything
from service.spec import JobState

_HOME = Path(".graphmill/demo")
_NEIGHBOUR = Path("../shared/data")  # where a copy of the public data sets lies beside some checkouts
_SERVER = (sys.executable, "-P", "-m", "api.main", "--port", "0", "--json")
_TERMINATING = (signal.SIGTERM, signal.SIGHUP)  # the latter when its terminal is closed
_STOP_S = 40.0
_INSTEAD = "digits-knn"  # built in: scikit-learn's digits

# Small enough for two CPU cores, and enough to learn something.
_TRANSFORMER = {
    "name": "demo-graphormer",
    "kind": "megagraph",
    "model": {"name": "graphormer"},
    "training": {"epochs": 30, "learning_rate": 0.005},
    "resources": {"num_workers": 2},
}
_SAMPLED = {
    "name": "demo-graphsage",
    "kind": "mqgnn",
    "model": {"name": "graphsage", "hidden_size": 64},
    "training": {"epochs": 15, "batch_size": 256, "learning_rate": 0.02, "weight_decay": 0.0, "eval_every_epochs": 3},
    "resources": {"num_workers": 2},
}


@dataclass(frozen=True)
class Addresses:
    """Where the server that this demo started listens."""

    api: str
    dashboard: str


def main() -> int:
    """Run the demo; the exit code."""
    console = open_console()
    _set_defaults()
    states = []
    for sent in _TERMINATING:
        signal.signal(sent, _on_terminate)
    try:
        with _serving(console) as addresses, GraphmillClient(url=addresses.api) as client:
            for wanted, spec in (("Cora", _TRANSFORMER), ("Photo", _SAMPLED)):
                states.append(_run_job(console, client, addresses, spec=spec, wanted=wanted))
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0 if states == [JobState.FINISHED, JobState.FINISHED] else 1


def _on_terminate(sent: int, _frame: FrameType | None) -> None:
    """Unwind as Ctrl-C does, so that the server, which has a session of its own, is ended too."""
    raise SystemExit(128 + sent)


def _set_defaults() -> None:
    """Only what the user has not set: a home of the demo's own, and the data beside the checkout if it is there."""
    os.environ.setdefault("GRAPHMILL_HOME", str(_HOME.absolute()))
    if _NEIGHBOUR.is_dir():
        os.environ.setdefault("GRAPHMILL_DATA_ROOT", str(_NEIGHBOUR.resolve()))


@contextmanager
def _serving(console: Console) -> Iterator[Addresses]:
    """The server as a process of its own, ended on the way out with its cluster, whatever happened."""
    console.print("Starting the API and an embedded Ray cluster ...", style="dim")
    with subprocess.Popen(_SERVER, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise SystemExit(server.wait() or 1)  # it has said on stderr what is wrong
            facts = json.loads(line)
            yield Addresses(api=facts["api"], dashboard=facts["dashboard"])
        finally:
            for again in (signal.SIGINT, *_TERMINATING):  # a second Ctrl-C must not leave half of it behind
                signal.signal(again, signal.SIG_IGN)
            _end(server)
    if server.returncode:
        raise SystemExit(f"the server ended with exit code {server.returncode}")
    console.print("The API and the cluster have ended.", style="dim")


def _end(server: "subprocess.Popen[str]") -> None:
    server.send_signal(signal.SIGINT)
    try:
        server.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        stop_everything()
        server.kill()


def _run_job(
    console: Console, client: GraphmillClient, addresses: Addresses, *, spec: dict[str, Any], wanted: str
) -> JobState:
    name = _choose_dataset(client, wanted)
    why = "found" if name == wanted else f"{wanted} was not found: set GRAPHMILL_DATA_ROOT to have it"
    console.rule(f"{spec['model']['name']} on {name}")
    console.print(f"data set {name} ({why})", soft_wrap=True)
    console.print(f"API {addresses.api}/docs   Ray dashboard {addresses.dashboard}", soft_wrap=True)
    job = client.submit({**spec, "dataset": {"name": name}})
    state = follow_with_progress(client, job.id, as_json=False)
    output.show_outcome(client, client.job(job.id))
    return state


def _choose_dataset(client: GraphmillClient, wanted: str) -> str:
    found = any(item.name == wanted and item.is_found for item in client.datasets())
    return wanted if found else _INSTEAD


if __name__ == "__main__":
    sys.exit(main())
