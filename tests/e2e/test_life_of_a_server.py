"""The API is killed in the middle of a job; the job goes on, and the next server has the whole story, once."""

import json
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.server import Home

pytestmark = pytest.mark.ray

SPEC = {
    "name": "long-enough",
    "kind": "mqgnn",
    "dataset": {"name": "digits-knn"},
    "model": {"name": "graphsage", "hidden_size": 32},
    "training": {"epochs": 150, "batch_size": 64, "eval_every_epochs": 10, "checkpoint_every_epochs": 20},
    "resources": {"num_workers": 1},
}


def processes_of(home: Path) -> list[psutil.Process]:
    """Whatever still runs with this home in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GRAPHMILL_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def show(home: Home, job_id: str) -> dict[str, object]:
    done = home.run("graphmill", "show", job_id, "--json")
    assert done.returncode == 0, done.stderr
    job: dict[str, object] = json.loads(done.stdout)["job"]
    return job


def wait_for_progress(home: Home, job_id: str) -> None:
    deadline = time.monotonic() + 120
    while show(home, job_id)["state"] != "RUNNING":
        assert time.monotonic() < deadline, show(home, job_id)
        time.sleep(0.3)


def test_a_killed_api_harms_no_job_and_the_next_server_tells_everything_once(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(SPEC))
    try:
        with home.serving() as server:
            done = home.run("graphmill", "submit", str(spec), "--json")
            assert done.returncode == 0, done.stderr
            job_id = json.loads(done.stdout)["id"]
            wait_for_progress(home, job_id)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(timeout=10)
            first_dashboard = server.dashboard
        refused = home.run("graphmill", "jobs", "--json", timeout_s=120)
        assert refused.returncode == 3, "without a server the command line says that it cannot be reached"
        with home.serving() as server:
            assert server.dashboard == first_dashboard, "the second server attaches to the cluster of the first"
            followed = home.run("graphmill", "logs", job_id, "-f", timeout_s=240)
            assert followed.returncode == 0, followed.stdout[-2000:] + followed.stderr
            job = show(home, job_id)
            assert job["state"] == "FINISHED", job["reason"]
            assert job["restarts"] == 0
            check_story(home, job_id)
        assert processes_of(home.folder) == [], "Ctrl-C ends the API and the cluster"
    finally:
        stopped = home.run("graphmill", "stop", "--json")
    assert stopped.returncode == 0
    assert json.loads(stopped.stdout) == {"api": False, "cluster": False}


def check_story(home: Home, job_id: str) -> None:
    """Every state once and in order; every evaluated epoch there, also those while no API was; events and log agree."""
    from api.client import GraphmillClient
    from service.settings import Settings

    with GraphmillClient(settings=Settings(home=home.folder)) as client:
        states = [event.data["state"] for event in client.follow(job_id) if event.type == "state"]
        assert states == ["PENDING", "PROFILING", "PLANNING", "SCHEDULING", "RUNNING", "FINISHED"]
        (accuracies,) = client.metrics(job_id, names=["val_accuracy"])
        assert {*range(10, 151, 10)} <= set(accuracies.epochs)
        (losses,) = client.metrics(job_id, names=["loss"])
        told = [int(found) for found in re.findall(r"epoch (\d+), step \d+ of", "".join(client.logs(job_id)))]
        assert list(losses.epochs) == told, "the store has what the ranks reported, once"
